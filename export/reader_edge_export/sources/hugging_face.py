"""A model in Hugging Face format, in a folder: checked before anything heavy is imported."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reader_edge_export.architectures import check_architecture, max_context_of
from reader_edge_runtime.errors import ExportError, TokenizerError
from reader_edge_runtime.package.manifest import sha256_of

_UNSAFE_WEIGHTS = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class Source:
    """A folder that holds a supported model.

    name: its path, or that on the hub. config: the contents of config.json. max_context: tokens of context to export.
    """

    name: str
    folder: Path
    config: dict[str, Any]
    max_context: int

    @property
    def short_name(self) -> str:
        """The hub id, or the own name of a local folder; characters that cannot be shown become "?"."""
        name = Path(self.name).resolve().name if Path(self.name).exists() else self.name
        return "".join(char if char.isprintable() else "?" for char in name)

    @property
    def architecture(self) -> str:
        return str(self.config["model_type"])

    def fingerprint(self) -> str:
        """SHA-256 over config.json and the weight files: one line "<sha256>  <name>" each, sorted by name."""
        paths = sorted([self.folder / "config.json", *_weight_files(self.folder)], key=lambda path: path.name)
        lines = "".join(f"{sha256_of(path)}  {path.name}\n" for path in paths)
        return hashlib.sha256(lines.encode()).hexdigest()


def find_source(name: str | Path, max_context: int | None) -> Source:
    """Check a model in a folder.

    Raises ExportError, UnsupportedArchitectureError or TokenizerError, with the remedy in one sentence.
    """
    folder = Path(name)
    if not folder.is_dir():
        raise ExportError(f"No model at '{name}': give a folder in Hugging Face format.")
    source = _checked(str(name), folder, max_context)
    _check_weights(folder)
    if not (folder / "tokenizer.json").is_file():
        raise TokenizerError(
            f"'{folder}' holds no tokenizer.json: save the model's fast tokenizer there "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...))."
        )
    return source


def _checked(name: str, folder: Path, max_context: int | None) -> Source:
    config = read_json(folder / "config.json")
    check_architecture(config)
    return Source(name, folder, config, max_context_of(config, max_context))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ExportError."""
    if not path.is_file():
        raise ExportError(f"'{path.parent}' holds no {path.name}: give a folder in Hugging Face format.")
    try:
        fields = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ExportError(f"'{path}' is not valid JSON ({error}): fetch the model again.") from None
    if not isinstance(fields, dict):
        raise ExportError(f"'{path}' holds no JSON object: fetch the model again.")
    return fields


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _check_weights(folder: Path) -> None:
    if _weight_files(folder):
        return
    unsafe = [path.name for pattern in _UNSAFE_WEIGHTS for path in folder.glob(pattern)]
    if unsafe:
        raise ExportError(
            f"'{folder}' holds its weights as {unsafe[0]}, a pickle that may run code: convert them to safetensors."
        )
    raise ExportError(f"'{folder}' holds no weights (*.safetensors): fetch the model again.")
