"""What a drafter has learned, as a file of named arrays that belongs to a tokenizer."""

from collections.abc import Mapping
from pathlib import Path

from reader_edge_runtime.array_file import MAX_BYTES, ArrayFormat
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import DraftError

MAGIC = b"\x89redgdr\n"

_FORMAT = ArrayFormat(
    magic=MAGIC,
    error=DraftError,
    name="what a drafter learned",
    owner="tokenizer",
    remedy="erase it, the drafter learns again",
)


def write_state(path: Path, tokenizer_fingerprint: bytes, arrays: Mapping[str, Array]) -> None:
    """Write the arrays in place of a file, or make it. Raises DraftError where it cannot be written."""
    _FORMAT.write(path, tokenizer_fingerprint, arrays)


def read_state(path: Path, tokenizer_fingerprint: bytes, max_bytes: int = MAX_BYTES) -> dict[str, Array]:
    """The arrays of a file, whose meaning is not checked yet. Raises DraftError; see `ArrayFormat.read`."""
    return _FORMAT.read(path, tokenizer_fingerprint, max_bytes)
