"""Which tokenizer `--tokenizer` means: a package, a Hugging Face folder, or a tokenizer.json."""

from pathlib import Path

from reader_edge_runtime.errors import TokenizerError
from reader_edge_runtime.package.manifest import TOKENIZER_NAME
from reader_edge_runtime.text.tokenizer import Tokenizer


def load_tokenizer(name: str) -> Tokenizer:
    """Load the tokenizer of a package or model folder, or from its file. Raises TokenizerError."""
    path = Path(name)
    if path.is_dir():
        path /= TOKENIZER_NAME
    if not path.is_file():
        raise TokenizerError(f"No tokenizer at '{path}': give a package, a Hugging Face folder or a tokenizer.json.")
    return Tokenizer.from_file(path)
