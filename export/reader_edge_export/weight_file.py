"""A package's file of weights, written while its graph is made: no more than one tensor is in memory."""

import hashlib
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_runtime.package.manifest import WEIGHTS_NAME, FileEntry

_PAGE, _LINE = 4096, 64  # what large tensors begin at, and small ones
_MIN_PAGED_BYTES = 1 << 16
_MIN_BYTES = 256  # smaller ones stay in the graph
_CHUNK = 1 << 24


class WeightFile:
    """The file WEIGHTS_NAME in a folder; tensors are only ever added. Its checksum is known when it is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / WEIGHTS_NAME).open("wb", buffering=0)
        self._sha256 = hashlib.sha256()
        self._num_bytes = 0

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    @property
    def entry(self) -> FileEntry:
        """Size and checksum of what was written."""
        return FileEntry(self._num_bytes, self._sha256.hexdigest())

    def takes(self, num_bytes: int) -> bool:
        """Whether a tensor of so many bytes goes into the file, and not into the graph."""
        return num_bytes >= _MIN_BYTES

    def add(self, array: npt.NDArray[np.generic], dtype: ir.DataType, name: str) -> ir.ExternalTensor:
        """Write a tensor, and return it as one that lies in the file."""
        array = np.ascontiguousarray(array)
        self._write(bytes(-self._num_bytes % (_PAGE if array.nbytes >= _MIN_PAGED_BYTES else _LINE)))
        offset = self._num_bytes
        data = array.reshape(-1).view(np.uint8)
        for start in range(0, len(data), _CHUNK):
            self._write(data[start : start + _CHUNK].data)
        return ir.ExternalTensor(
            WEIGHTS_NAME, offset, len(data), dtype, shape=ir.Shape(array.shape), name=name, base_dir=self._folder
        )

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._sha256.update(data)
        self._num_bytes += len(data)
