"""How a GGUF file is told from any other; needs no library."""

from pathlib import Path

from reader_edge_runtime.errors import GgufError

MAGIC = b"GGUF"


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do; Ollama keeps them under names without an ending."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def no_gguf_file(path: Path) -> GgufError:
    """What to raise for any other file."""
    return GgufError(f"'{path}' is no GGUF file: give a .gguf file or a folder in Hugging Face format.")
