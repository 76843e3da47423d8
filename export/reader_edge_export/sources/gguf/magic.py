"""How a GGUF file is recognised; needs no library."""

from pathlib import Path
from typing import NoReturn

from reader_edge_runtime.errors import GgufError
from reader_edge_runtime.outside.plain_file import check_fetched

MAGIC = b"GGUF"


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do; Ollama keeps them under names without an ending."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def refuse_as_no_gguf(path: Path) -> NoReturn:
    """Raise GgufError for any other file."""
    check_fetched(path, GgufError)
    raise GgufError(f"'{path}' is no GGUF file: give a .gguf file or a folder in Hugging Face format.")
