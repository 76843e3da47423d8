"""Files of named arrays, which are whole or refused: what a drafter learned, sessions.

    offset  bytes
         0      8  magic, which tells what the file is
         8      4  format version, 1
        12     32  fingerprint (SHA-256) of what the arrays belong to
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
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

import numpy as np

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.atomic_file import new_file, write_failure
from reader_edge_runtime.errors import ReaderEdgeError

FORMAT_VERSION = 1
MAX_BYTES = 1 << 32

_HEADER = struct.Struct("<8sI32s32sI")
_DTYPES = ("<i4", "<i8", "<f2", "<f4", "<f8", "<u2", "|i1", "|u1")
_MAX_TABLE_BYTES, _MAX_DIMENSIONS = 1 << 20, 8


@dataclass(frozen=True, slots=True)
class ArrayFormat:
    """A kind of such files. magic: 8 bytes. error: what is raised of them. Words of its sentences:

    name: what a file holds. owner: what its fingerprint is of. remedy: what to do with a damaged one. other: what to do
    with one of another kind or owner. again, elsewhere: see `write_failure`. akin: magics of other kinds that a
    user may give by mistake, each with the words that say what such a file is.
    """

    magic: bytes
    error: type[ReaderEdgeError]
    name: str
    owner: str
    remedy: str
    other: str = "name another file"
    again: str = "try again"
    elsewhere: str = "name a file in a folder that can be written"
    akin: Mapping[bytes, str] = field(default_factory=dict)

    def write(
        self,
        path: Path,
        fingerprint: bytes,
        arrays: Mapping[str, Array],
        mode: int = 0o666,
        is_durable: bool = False,
    ) -> None:
        """Write arrays in place of a file, or make it; views are copied one at a time. Raises `error`.

        mode, is_durable: see `new_file`.
        """
        table = json.dumps({name: [array.dtype.str, array.shape] for name, array in arrays.items()}).encode()
        digest = hashlib.sha256(table)
        try:
            with new_file(path, mode, is_durable) as file:
                file.write(bytes(_HEADER.size))
                file.write(table)
                for array in arrays.values():
                    data = np.ascontiguousarray(array).data
                    digest.update(data)
                    file.write(data)
                file.seek(0)
                file.write(_HEADER.pack(self.magic, FORMAT_VERSION, fingerprint, digest.digest(), len(table)))
        except OSError as error:
            raise self.error(write_failure(path, error, self.again, self.elsewhere)) from error
        except ValueError as error:  # a path with a NUL
            raise self.error(f"{str(path)!r} cannot be written: {error}.") from None

    def read(
        self, path: Path, fingerprint: bytes, max_bytes: int = MAX_BYTES, is_mapped: bool = False
    ) -> dict[str, Array]:
        """The arrays of a file, whose meaning is not checked yet.

        max_bytes: of the file at most. is_mapped: they stay in the file, and come to memory as they are used. Raises
        `error` for what is no such file, is damaged, or belongs to another owner; nothing is allocated for it before.
        """
        try:
            num_bytes = path.stat().st_size if path.is_file() else 0
            if not path.exists():
                raise self.error(f"There is no file '{path}': {self.other}.")
            if not _HEADER.size <= num_bytes <= max_bytes:
                raise self.error(f"'{path}' is not a file of {self.name}: {self.other}.")
            with path.open("rb") as file:
                return self._read(path, file, fingerprint, num_bytes - _HEADER.size, is_mapped)
        except OSError as error:
            raise self.error(f"'{path}' cannot be read: {error.strerror or error}.") from error
        except MemoryError:
            raise self.error(f"'{path}' needs more memory than there is: {self.remedy}.") from None

    def _read(
        self, path: Path, file: BufferedReader, fingerprint: bytes, num_bytes: int, is_mapped: bool
    ) -> dict[str, Array]:
        magic, version, owner, checksum, table_bytes = _HEADER.unpack(file.read(_HEADER.size).ljust(_HEADER.size))
        if magic in self.akin:
            raise self.error(f"'{path}' {self.akin[magic]}: {self.other}.")
        if magic != self.magic or version != FORMAT_VERSION:
            raise self.error(f"'{path}' is not a file of {self.name} of this version: {self.other}.")
        if owner != fingerprint:
            raise self.error(f"'{path}' belongs to another {self.owner}: {self.other}.")
        if hashlib.file_digest(file, "sha256").digest() != checksum:
            raise self.error(f"'{path}' is damaged: {self.remedy}.")
        try:
            if table_bytes > min(num_bytes, _MAX_TABLE_BYTES):
                raise ValueError("a table without end")
            file.seek(_HEADER.size)
            shapes = _shapes(json.loads(file.read(table_bytes)), num_bytes - table_bytes)
            taken = _mapped_array if is_mapped else _array
            return {name: taken(file, *each) for name, each in shapes.items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise self.error(f"'{path}' has no sound table of arrays: {self.remedy}.") from error


def _shapes(table: dict[str, tuple[str, list[int]]], num_bytes: int) -> dict[str, tuple[str, list[int]]]:
    """The table itself. Raises ValueError, TypeError or AttributeError unless it describes exactly so many bytes."""
    total = 0
    for name, (dtype, shape) in table.items():
        is_shape = len(shape) <= _MAX_DIMENSIONS and all(type(n) is int and 0 <= n <= num_bytes for n in shape)
        if dtype not in _DTYPES or not is_shape:
            raise ValueError(name)
        total += math.prod(shape) * np.dtype(dtype).itemsize
    if total != num_bytes:
        raise ValueError("bytes missing or left over")
    return table


def _array(file: BufferedReader, dtype: str, shape: list[int]) -> Array:
    array: Array = np.empty(shape, dtype)
    if array.nbytes and file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
        raise ValueError("cut short meanwhile")
    return array


def _mapped_array(file: BufferedReader, dtype: str, shape: list[int]) -> Array:
    if not math.prod(shape):
        return np.empty(shape, dtype)
    start = file.tell()
    array: Array = np.memmap(file, dtype, "r", start, tuple(shape))  # which moves the file's position
    file.seek(start + array.nbytes)
    return array
