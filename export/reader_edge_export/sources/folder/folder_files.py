"""Files of a folder in Hugging Face format: bounded JSON, and what else a folder may be."""

import json
from pathlib import Path
from typing import Any

from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError
from reader_edge_runtime.untrusted.plain_file import check_plain_file

_MAX_JSON_BYTES = 1 << 24
_READ = ("*.json", "*.jinja", "*.model", "*.txt")  # what transformers and tokenizers may open beside the weights
_MAX_NAMED = 5


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
                f"'{folder}' holds a model and an adapter (adapter_config.json) that changes its answers: give a "
                "model that it is merged into (peft's merge_and_unload), or remove adapter_config.json to export the "
                "model without it."
            )
        return
    if has_adapter:
        raise UnsupportedArchitectureError(
            f"'{folder}' holds an adapter (adapter_config.json) for another model: merge it into that model "
            "(peft's merge_and_unload), and give the merged one."
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
