"""How a GGUF file is recognised; needs no library."""

from pathlib import Path
from typing import NoReturn

from reader_edge_runtime.errors import GgufError
from reader_edge_runtime.untrusted.plain_file import check_fetched

MAGIC = b"GGUF"
_OLDER = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # ggml, ggmf, ggjt and ggla, as little-endian machines write them
_WEB_PAGE = (b"<!doctype html", b"<html")


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do; Ollama keeps them under names without an ending."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def refuse_as_no_gguf(path: Path) -> NoReturn:
    """Raise GgufError for any other file."""
    check_fetched(path, GgufError)
    with path.open("rb") as file:
        head = file.read(16)
    if not head:
        raise GgufError(f"'{path}' is empty: fetch it again.")
    if head.startswith(_OLDER):
        raise GgufError(f"'{path}' has a format that GGUF replaced in August 2023: give a .gguf file of the model.")
    if head.lower().startswith(_WEB_PAGE):
        raise GgufError(f"'{path}' is a web page, perhaps the one that tells of the file: fetch the file itself.")
    raise GgufError(f"'{path}' is no GGUF file: give a .gguf file, a package or a folder in Hugging Face format.")
