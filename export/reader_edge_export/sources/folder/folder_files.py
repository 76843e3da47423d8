"""Files of a folder in Hugging Face format: bounded JSON, and what else a folder may be."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from reader_edge_runtime.untrusted.plain_file import check_plain_file

_MAX_JSON_BYTES = 1 << 24
_READ = ("*.json", "*.jinja", "*.model", "*.txt")  # what transformers and tokenizers may open beside the weights
_MAX_NAMED = 5
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD_NAME = re.compile(r"\w[\w.-]{0,199}\.safetensors", re.ASCII)
_UNSAFE = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.bin")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ExportError."""
    if not path.exists() and not path.is_symlink():
        raise ExportError(f"'{path.parent}' holds no {path.name}: give a folder in Hugging Face format.")
    check_plain_file(path, ExportError, "fetch the model again")
    num_bytes = path.stat().st_size
    if num_bytes > _MAX_JSON_BYTES:
        raise ExportError(f"'{path}' has {num_bytes} bytes, more than it may have: fetch the model again.")
    try:
        fields = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ExportError(f"'{path}' is not valid JSON ({error}): fetch the model again.") from None
    if not isinstance(fields, dict):
        raise ExportError(f"'{path}' holds no JSON object: fetch the model again.")
    return fields


def check_entries(folder: Path) -> None:
    """Raise ExportError where a file that a library would open is no plain file, or the folder holds something else.

    Links to plain files are followed: a folder of the hub's cache consists of them.
    """
    for pattern in _READ:
        for path in sorted(folder.glob(pattern)):
            check_plain_file(path, ExportError, "fetch the model again")
    has_adapter = (folder / "adapter_config.json").exists()
    if (folder / "config.json").exists():
        if has_adapter:  # transformers would load it, and the model that it names instead of this one
            raise UnsupportedArchitectureError(
                f"'{folder}' holds a model and an adapter (adapter_config.json) that changes its answers: move the "
                "adapter's files to a folder of their own for `reader-edge export MODEL OUT --adapter FOLDER`, or "
                "remove adapter_config.json to export the model without it."
            )
        return
    if has_adapter:
        raise UnsupportedArchitectureError(
            f"'{folder}' holds an adapter (adapter_config.json) for another model: merge it into that one "
            "with `reader-edge export MODEL OUT --adapter FOLDER`."
        )
    names = ("config.json", "adapter_config.json")
    if snapshots := sorted(path for name in names for path in folder.glob(f"snapshots/*/{name}")):
        raise ExportError(f"'{folder}' is the hub cache's folder of a model: give '{snapshots[-1].parent}' instead.")
    if files := sorted(path.name for path in folder.glob("*.gguf")):
        more = f" and {len(files) - _MAX_NAMED} more" if len(files) > _MAX_NAMED else ""
        raise ExportError(
            f"'{folder}' holds GGUF files ({', '.join(files[:_MAX_NAMED])}{more}) and no folder's model: "
            f"give one of them, such as '{folder / files[0]}'."
        )


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights, by name: one file, or the shards that an index names.

    Raises ExportError where there are none, where one is missing or no plain file, and where an index leads elsewhere.
    """
    if (folder / _WHOLE).is_symlink() or (folder / _WHOLE).exists():
        names = [_WHOLE]
    elif (folder / _INDEX).is_symlink() or (folder / _INDEX).exists():
        names = sorted(set(shard_of_tensors(folder).values()))
    else:
        names = [_only_name(folder)]
    for name in names:
        check_plain_file(folder / name, ExportError, "fetch the model again")
    return [folder / name for name in names]


def check_names(folder: Path) -> None:
    """Refuse weights under another name, which only folders of quantised weights may give them. Raises ExportError."""
    files = [path.name for path in weight_files(folder)]
    if _WHOLE not in files and not (folder / _INDEX).exists():
        raise ExportError(
            f"'{folder}' holds {files[0]} but no {_WHOLE}, which is where this format keeps a model's weights: give "
            "the folder of the whole model in Hugging Face format."
        )


def shard_of_tensors(folder: Path) -> dict[str, str]:
    """Tensor name -> file name, as a folder's index says; {} without one. Raises ExportError."""
    path = folder / _INDEX
    if (folder / _WHOLE).exists() or not path.exists():
        return {}
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ExportError(f"'{path}' has no weight_map: fetch the model again.")
    for name in shards.values():
        if not isinstance(name, str) or not _SHARD_NAME.fullmatch(name):
            raise ExportError(f"'{path}' names the file {name!r:.80}, which is not one of its folder: do not trust it.")
    return shards


def _only_name(folder: Path) -> str:
    """Of a folder's weights under another name, as older quantising tools gave them."""
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(names) == 1:
        return names[0]
    if names:
        raise ExportError(
            f"'{folder}' holds {len(names)} files of weights ({names[0]} and others) but no {_INDEX}: "
            "fetch the model again, with its index."
        )
    present = sorted(path.name for path in folder.iterdir() if path.is_file())
    for pattern in _UNSAFE:
        if unsafe := [name for name in present if fnmatch(name, pattern)]:
            raise ExportError(
                f"'{folder}' holds its weights as {unsafe[0]}, a pickle that may run code: convert them to safetensors "
                "(AutoModelForCausalLM.from_pretrained(...).save_pretrained(...))."
            )
    if ggufs := [name for name in present if name.endswith(".gguf")]:
        raise ExportError(f"'{folder}' holds GGUF files ({', '.join(ggufs[:5])}): give one of them instead.")
    raise ExportError(f"'{folder}' holds no weights (*.safetensors): fetch the model again.")
