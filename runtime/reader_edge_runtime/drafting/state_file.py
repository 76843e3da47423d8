"""What a drafter has learned, as a file of named arrays.

    offset  bytes
         0      8  magic, b"\\x89redgdr\\n"
         8      4  format version, 1
        12     32  tokenizer fingerprint (SHA-256)
        44     32  SHA-256 of all that follows
        76      4  bytes of the table
        80         the table as JSON, {name: [dtype, shape]}; then the arrays' bytes in its order

All numbers are little-endian.
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.errors import DraftError

MAGIC = b"\x89redgdr\n"
FORMAT_VERSION = 1
MAX_BYTES = 1 << 32

_HEADER = struct.Struct("<8sI32s32sI")
_DTYPES = ("<i4", "<i8", "<f4", "<f8", "|u1")

Array = npt.NDArray[Any]


def write_state(path: Path, tokenizer_fingerprint: bytes, arrays: Mapping[str, Array]) -> None:
    """Write the arrays in place of a file, or make it. Raises DraftError where it cannot be written."""
    table = json.dumps({name: [array.dtype.str, array.shape] for name, array in arrays.items()}).encode()
    content = table + b"".join(array.tobytes() for array in arrays.values())
    checksum = hashlib.sha256(content).digest()
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, tokenizer_fingerprint, checksum, len(table))
    try:
        write_file(path, header + content)
    except OSError as error:
        raise DraftError(f"What was learned cannot be written to '{path}': {error.strerror or error}.") from error


def read_state(path: Path, tokenizer_fingerprint: bytes, max_bytes: int = MAX_BYTES) -> dict[str, Array]:
    """The arrays of a file, whose meaning is not checked yet.

    max_bytes: of the file at most. Raises DraftError for what is no such file, is damaged, or belongs to another
    tokenizer.
    """
    try:
        num_bytes = path.stat().st_size if path.is_file() else 0
        if not _HEADER.size <= num_bytes <= max_bytes:
            raise DraftError(f"'{path}' is not a file of what a drafter learned: name another one.")
        data = path.read_bytes()
    except OSError as error:
        raise DraftError(f"What was learned cannot be read from '{path}': {error.strerror or error}.") from error
    magic, version, fingerprint, checksum, table_bytes = _HEADER.unpack_from(data)
    if magic != MAGIC or version != FORMAT_VERSION:
        raise DraftError(f"'{path}' is not a file of what this version's drafter learned: name another one.")
    if fingerprint != tokenizer_fingerprint:
        raise DraftError(f"'{path}' belongs to another tokenizer: name another file.")
    content = memoryview(data)[_HEADER.size :]
    if hashlib.sha256(content).digest() != checksum:
        raise DraftError(f"'{path}' is damaged: erase it, the drafter learns anew.")
    try:
        return _arrays(json.loads(bytes(content[:table_bytes])), content[table_bytes:])
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DraftError(f"'{path}' has no sound table of arrays: erase it, the drafter learns anew.") from error


def _arrays(table: dict[str, tuple[str, list[int]]], content: memoryview) -> dict[str, Array]:
    """Raises ValueError, TypeError or AttributeError unless the table describes exactly the content."""
    arrays: dict[str, Array] = {}
    for name, (dtype, shape) in table.items():
        if dtype not in _DTYPES or not all(type(n) is int and 0 <= n <= MAX_BYTES for n in shape):
            raise ValueError(name)
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if num_bytes > len(content):
            raise ValueError(name)
        arrays[name] = np.frombuffer(content[:num_bytes], dtype).reshape(shape).copy()
        content = content[num_bytes:]
    if len(content):
        raise ValueError("bytes left over")
    return arrays
