"""The numbers in a safetensors file: names, shapes and types from its header, values one tensor at a time.

Format: https://github.com/huggingface/safetensors#format. Every size is compared with the file before anything is
allocated by it. Exports read models by the library of that name, which knows more types.
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, BinaryIO

import msgspec
import numpy as np
from msgspec import Meta

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.untrusted.plain_file import unblocked

_FLOATS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8"}  # as numpy has them; of BF16 the bits
_BITS = {  # of all types, so that what is no number here is at least named
    **{f"{kind}{bits}": bits for kind in ("I", "U", "F") for bits in (8, 16, 32, 64)},
    **{"BF16": 16, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "C64": 64},
}
_LAYOUTS = (None, "pt", "mlx")  # that a file's metadata names; MLX has PyTorch's
_MAX_HEADER_BYTES = 1 << 24

_Size = Annotated[int, Meta(ge=0, lt=1 << 48)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[list[_Size], Meta(max_length=8)]
    data_offsets: tuple[_Size, _Size]


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """A tensor in a file. dtype: as the format calls it, e.g. "F16". offset: of its first byte in the file.

    state: of the file when its header was read. error, remedy: what is raised where that has changed.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    offset: int
    state: tuple[int, ...]
    error: type[ReaderEdgeError]
    remedy: str

    @property
    def is_float(self) -> bool:
        return self.dtype in _FLOATS

    def read(self) -> Float32Array:
        """Its values. The file is not mapped into memory: a mapping ends the process when the file becomes shorter."""
        values = np.empty(self.shape, _FLOATS[self.dtype])
        data = values.reshape(-1).view(np.uint8).data
        filled = 0
        with open(self.file, "rb", buffering=0, opener=unblocked) as file:
            file.seek(self.offset)
            while filled < len(data) and (num_bytes := file.readinto(data[filled:])):
                filled += num_bytes
            if filled < len(data) or _state(file) != self.state:
                raise self.error(f"'{self.file}' changed while it was read: {self.remedy}.")
        if self.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):
            return values.astype(np.float32)


def stored_numbers(path: Path, error: type[ReaderEdgeError], remedy: str) -> list[StoredNumbers]:
    """The tensors of a plain file. Raises `error` for a broken one."""
    with open(path, "rb", opener=unblocked) as file:
        try:
            entries, start = _entries(file)
            state = _state(file)
        except (ValueError, RecursionError, struct.error, msgspec.MsgspecError) as reason:
            sentence = f"The weights in '{path}' cannot be loaded: {str(reason) or 'broken'!s:.200}; {remedy}."
            raise error(sentence) from None
    return [
        StoredNumbers(name, path, tuple(entry.shape), entry.dtype, start + entry.data_offsets[0], state, error, remedy)
        for name, entry in entries.items()
    ]


def _entries(file: BinaryIO) -> tuple[Mapping[str, _Entry], int]:
    """The header's, and where its data begin. Raises ValueError or msgspec's errors."""
    num_bytes = os.fstat(file.fileno()).st_size
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(_MAX_HEADER_BYTES, num_bytes - 8):
        raise ValueError(f"its header is to have {length} bytes")
    entries = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(entries.pop("__metadata__", b"{}"), type=dict[str, str])
    if (layout := metadata.get("format")) not in _LAYOUTS:
        raise ValueError(f"it has the layout {layout!r:.40}, of which pt and mlx are read")
    found = {name: msgspec.json.decode(each, type=_Entry) for name, each in entries.items()}
    end = 0
    for name, entry in sorted(found.items(), key=lambda each: each[1].data_offsets):
        if entry.dtype not in _BITS:
            raise ValueError(f"{name!r:.80} has the type {entry.dtype!r}, which is unknown")
        size = math.prod(entry.shape) * _BITS[entry.dtype] // 8
        if entry.data_offsets != (end, end + size):
            raise ValueError(f"{name!r:.80} does not lie where the one before it ends, in its own size")
        end += size
    if 8 + length + end != num_bytes:
        raise ValueError(f"it has {num_bytes} bytes instead of {8 + length + end}")
    return found, 8 + length


def _state(file: IO[bytes]) -> tuple[int, ...]:
    state = os.fstat(file.fileno())
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
