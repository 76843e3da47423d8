"""A package's file of weights, written while its graph is made: no more than one matrix is in memory."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.journal import Journal, StoredMatrix
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.package.manifest import WEIGHTS_NAME, FileEntry

_MIN_SHARED_BYTES = 1 << 14  # smaller ones are not worth the search
_COMPARED_AT_ONCE = 1 << 24
Parts = Iterable[Array]  # of a tensor, some of its rows after others
Values = Callable[[], Iterable[Array | Parts]]  # of tensors in turn, each whole or in parts

_PAGE, _LINE = 4096, 64  # what large tensors begin at, and small ones
_MIN_PAGED_BYTES = 1 << 16
_MIN_BYTES = 256  # smaller ones stay in the graph
_CHUNK = 1 << 24


class OtherWeights:
    """Of a graph that is written already: another one beside it refers to what both have. path: of its file."""

    def __init__(self, graph: Path, path: Path) -> None:
        self.path = path
        self._offsets: dict[int, list[int]] = {}
        for value in ir.load(graph).graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes >= _MIN_SHARED_BYTES:
                self._offsets.setdefault(tensor.nbytes, []).append(tensor.offset or 0)

    def offset_of(self, file: IO[bytes], offset: int, num_bytes: int) -> int | None:
        """Where the file has a tensor of the bytes that lie at an offset of another one; None where it has none."""
        with self.path.open("rb", buffering=0) as own:
            places = self._offsets.get(num_bytes, ())
            return next((each for each in places if _are_alike(own, each, file, offset, num_bytes)), None)


def _are_alike(own: IO[bytes], own_offset: int, other: IO[bytes], offset: int, num_bytes: int) -> bool:
    """Leaves the other one's position where it was: at its end."""
    own.seek(own_offset)
    other.seek(offset)
    while num_bytes:
        size = min(num_bytes, _COMPARED_AT_ONCE)
        if own.read(size) != other.read(size):
            break
        num_bytes -= size
    other.seek(0, 2)
    return not num_bytes


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape of a tensor, known before its values are."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, dtype: npt.DTypeLike, *shape: int) -> "TensorSpec":
        return cls(name, np.dtype(dtype), shape)

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class WeightFile:
    """A file of weights in a folder; tensors are only ever added. Its checksum is known when it is whole.

    journal: of what an export that was killed had written already, and where matrices are noted; None without one.
    name: of the file. other: one beside it, whose tensors are not written again.
    """

    def __init__(
        self, folder: Path, journal: Journal | None = None, name: str = WEIGHTS_NAME, other: OtherWeights | None = None
    ) -> None:
        self._name = name
        self._folder = folder
        self._journal = journal
        self._other = other
        path = folder / name
        mode = "r+b" if journal is not None and journal.has_matrices else "w+b"
        self._file = path.open(mode, buffering=0)
        self._sha256 = hashlib.sha256()
        self._num_bytes = 0

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the files that tensors lie in which were added."""
        return (self._name,) if self._other is None else (self._name, self._other.path.name)

    @property
    def entry(self) -> FileEntry:
        """Size and checksum of what was written."""
        return FileEntry(self._num_bytes, self._sha256.hexdigest())

    def takes(self, num_bytes: int) -> bool:
        """Whether a tensor of so many bytes goes into the file, and not into the graph."""
        return num_bytes >= _MIN_BYTES

    def add(self, array: Array, dtype: ir.DataType, name: str) -> ir.ExternalTensor:
        """Write a tensor, and return it as one that lies in the file."""
        return self.add_parts([array], dtype, array.shape, name)

    def add_parts(
        self, parts: Iterable[Array], dtype: ir.DataType, shape: tuple[int, ...], name: str
    ) -> ir.ExternalTensor:
        """Write a tensor of this shape, some of its rows after others, each part no sooner than it is made."""
        num_bytes = prod(shape) * dtype.numpy().itemsize
        begin, sha256 = self._num_bytes, self._sha256.copy()
        self._write(bytes(_padding(self._num_bytes, num_bytes)))
        offset = self._num_bytes
        for part in parts:
            data = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            for start in range(0, len(data), _CHUNK):
                self._write(data[start : start + _CHUNK].data)
        assert self._num_bytes == offset + num_bytes, name
        twin = None if self._other is None else self._other.offset_of(self._file, offset, num_bytes)
        if self._other is None or twin is None:
            return self._tensor(name, dtype, shape, offset, num_bytes)
        self._num_bytes, self._sha256 = begin, sha256
        self._file.truncate(begin)
        self._file.seek(begin)
        return _external(self._other.path, name, dtype, shape, twin, num_bytes)

    def add_matrix(
        self, parameters: Sequence[str], specs: Sequence[TensorSpec], values: Values
    ) -> list[ir.ExternalTensor]:
        """The tensors of a matrix that is made of these parameters, of any size, as they lie in the file.

        values: of the specs, whole or in parts; not called where an export that was killed has written them.
        """
        begin, offsets = self._num_bytes, list(_offsets(self._num_bytes, specs))
        end = offsets[-1] + specs[-1].num_bytes
        checksum = self._journal.take(parameters, begin, end, self._sha256) if self._journal is not None else None
        if checksum is not None:
            self._sha256, self._num_bytes = checksum, end
            self._file.seek(end)
        else:
            self._file.truncate(begin)
            written = []
            for array, spec in zip(values(), specs, strict=True):
                parts = [array] if isinstance(array, np.ndarray) else array
                dtype = ir.DataType.from_numpy(spec.dtype)
                written.append(self.add_parts(_checked(parts, spec), dtype, spec.shape, spec.name))
            if self._journal is None:
                return written
            self._journal.add(StoredMatrix(tuple(parameters), begin, end, self._sha256.hexdigest()))
        return [
            self._tensor(spec.name, ir.DataType.from_numpy(spec.dtype), spec.shape, offset, spec.num_bytes)
            for spec, offset in zip(specs, offsets, strict=True)
        ]

    def _tensor(
        self, name: str, dtype: ir.DataType, shape: tuple[int, ...], offset: int, num_bytes: int
    ) -> ir.ExternalTensor:
        return _external(self._folder / self._name, name, dtype, shape, offset, num_bytes)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._sha256.update(data)
        self._num_bytes += len(data)


def _external(
    path: Path, name: str, dtype: ir.DataType, shape: tuple[int, ...], offset: int, num_bytes: int
) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        path.name, offset, num_bytes, dtype, shape=ir.Shape(shape), name=name, base_dir=path.parent
    )


def _checked(parts: Iterable[Array], spec: TensorSpec) -> Iterator[Array]:
    for part in parts:
        assert (part.dtype, part.shape[1:]) == (spec.dtype, spec.shape[1:]), spec
        yield part


def _padding(position: int, num_bytes: int) -> int:
    """Bytes between what is written and a tensor of so many."""
    return -position % (_PAGE if num_bytes >= _MIN_PAGED_BYTES else _LINE)


def _offsets(position: int, specs: Sequence[TensorSpec]) -> Iterator[int]:
    """Where tensors will lie, one after the other."""
    for spec in specs:
        position += _padding(position, spec.num_bytes)
        yield position
        position += spec.num_bytes
