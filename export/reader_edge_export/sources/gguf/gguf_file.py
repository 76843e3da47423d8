"""A GGUF file, or one in several parts: its metadata, where its tensors lie, and their values."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from reader_edge_export.sources.gguf.split_files import joined_tensors, other_parts
from reader_edge_export.sources.gguf.tensor_kinds import KINDS, Tensor, dequantized
from reader_edge_runtime.arrays import Float32Array, UInt8Array
from reader_edge_runtime.errors import GgufError
from reader_edge_runtime.untrusted.gguf_header import OTHER, PERHAPS_DAMAGED, GgufHeader, Value
from reader_edge_runtime.untrusted.plain_file import unblocked

_CHUNK_BYTES = 1 << 22  # of a tensor, read at once


class GgufFile:
    """A file whose header has been read and checked; data is read when needed.

    path: of the only part, or of the first. states: of all parts, when their headers were read.
    """

    def __init__(
        self,
        path: Path,
        states: Mapping[Path, os.stat_result],
        metadata: Mapping[str, Value],
        tensors: Mapping[str, Tensor],
    ) -> None:
        self.path = path
        self._states = states
        self.metadata = metadata
        self.tensors = tensors

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Read the header, and those of other parts where this is the first of several.

        Raises GgufError, also for tensors that lie outside a file or upon each other, and for parts that are missing
        or do not belong together.
        """
        state, (metadata, tensors) = _opened(path)
        states, parts = {path: state}, [(metadata, tensors)]
        for other in other_parts(path, metadata):
            states[other], part = _opened(other)
            parts.append(part)
        return cls(path, states, metadata, tensors if len(parts) == 1 else joined_tensors(list(states), parts))

    @property
    def paths(self) -> list[Path]:
        """Of all parts, in their order."""
        return list(self._states)

    @property
    def num_bytes(self) -> int:
        """Of all parts together."""
        return sum(state.st_size for state in self._states.values())

    def with_header(self, metadata: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> "GgufFile":
        """The same file, read by another header. tensors: where its own lie, under other names."""
        return GgufFile(self.path, self._states, metadata, tensors)

    def error(self, problem: str, remedy: str = OTHER) -> GgufError:
        """One sentence about this file."""
        return GgufError(f"'{self.path}' {problem}: {remedy}.")

    def check_unchanged(self) -> None:
        """Raise GgufError where a part is not what it was when its header was read."""
        for path, state in self._states.items():
            if _identity(path.stat()) != _identity(state):
                raise GgufError(f"'{path}' changed while it was read: export it again when it is whole.")

    def weight_types(self) -> tuple[str, ...]:
        """Names of the types its tensors have, e.g. ("Q4_1", "Q8_0", "F32"), those with most bytes first."""
        num_bytes: dict[str, int] = {}
        for tensor in self.tensors.values():
            num_bytes[tensor.kind.name] = num_bytes.get(tensor.kind.name, 0) + tensor.num_bytes
        return tuple(sorted(num_bytes, key=lambda name: -num_bytes[name]))

    def values(self, name: str) -> Float32Array:
        """A whole tensor in fp32. Raises GgufError."""
        tensor = self.tensors[name]
        values = np.empty(tensor.shape, np.float32)
        self.read_into(values, tensor)
        return values

    def read_into(self, out: Float32Array, tensor: Tensor, first: int = 0) -> None:
        """Fill `out`, contiguous and of the shape of the tensor's rows from `first` on, dequantised a few at a time.

        Raises GgufError for a file that has changed, and for values that are not finite.
        """
        num_rows = math.prod(out.shape[:-1])
        rows = out.reshape(num_rows, -1)
        assert np.shares_memory(rows, out)
        start = 0
        for data in self.read_rows(tensor, first, first + num_rows):
            stop = start + len(data)
            rows[start:stop] = dequantized(data, tensor.kind)
            if not np.isfinite(rows[start:stop]).all():
                raise self.error(f"holds values in {tensor.name!r:.80} that are not finite", PERHAPS_DAMAGED)
            start = stop

    def read_rows(self, tensor: Tensor, start: int, stop: int) -> Iterator[UInt8Array]:
        """Rows [start, stop) of a tensor as they are, (rows, bytes), a few at a time.

        Raises GgufError for a file that has changed, also behind the last of them.
        """
        row_bytes = tensor.num_bytes // math.prod(tensor.shape[:-1])
        step = max(1, _CHUNK_BYTES // row_bytes)
        with open(tensor.path, "rb", opener=unblocked) as file:
            file.seek(tensor.offset + start * row_bytes)
            for first in range(start, stop, step):
                num_rows = min(step, stop - first)
                data = file.read(num_rows * row_bytes)
                if len(data) < num_rows * row_bytes:
                    raise GgufError(f"'{tensor.path}' became shorter while it was read: fetch it again.")
                yield np.frombuffer(data, np.uint8).reshape(num_rows, row_bytes)
        self.check_unchanged()


def _opened(path: Path) -> tuple[os.stat_result, tuple[dict[str, Value], dict[str, Tensor]]]:
    with open(path, "rb", opener=unblocked) as file:
        return os.fstat(file.fileno()), GgufHeader(path, file, KINDS).read()


def _identity(state: os.stat_result) -> tuple[int, ...]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
