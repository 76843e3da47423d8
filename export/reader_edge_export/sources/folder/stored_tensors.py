"""The tensors in a folder's safetensors files: their shapes and types from the headers, their values one at a time."""

import json
import math
import os
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from reader_edge_export.sources.folder.folder_files import shard_of_tensors, weight_files
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.untrusted.plain_file import unblocked

if TYPE_CHECKING:
    import torch

_COMPARED_AT_ONCE = 1 << 24  # numbers of a tensor
_LAYOUTS = ("pt", "mlx")  # that a file's metadata names; MLX has PyTorch's
_TORCH_NAMES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
}
_State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredTensor(ABC):
    """A tensor in a file. dtype: what its values are when they are read, as safetensors calls it, e.g. "F16"."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str

    @abstractmethod
    def read(self) -> "torch.Tensor":
        """Its values. Raises ExportError where the file has changed."""

    @abstractmethod
    def read_rows(self, start: int, stop: int) -> "torch.Tensor":
        """Some of its rows, likewise."""

    def read_part(self, index: int) -> "torch.Tensor":
        """One of its parts along the first axis, likewise."""
        return self.read_rows(index, index + 1)[0]

    def equals(self, other: "StoredTensor") -> bool:
        """Whether another tensor has the same values, of whatever type; a few rows of both are read at a time."""
        if self.shape != other.shape:
            return False
        num_at_once = max(1, _COMPARED_AT_ONCE // max(1, math.prod(self.shape[1:])))
        num_rows = self.shape[0] if self.shape else 0
        parts = [(start, min(start + num_at_once, num_rows)) for start in range(0, num_rows, num_at_once)]
        return all(bool((self.read_rows(*part).float() == other.read_rows(*part).float()).all()) for part in parts)


@dataclass(frozen=True, slots=True)
class SafetensorsTensor(StoredTensor):
    """One that is as large as its shape and type say. offset: of its first byte in the file.

    state: of the file when its header was read.
    """

    offset: int
    state: _State

    def read(self) -> "torch.Tensor":
        return self._read(0, math.prod(self.shape)).reshape(self.shape)

    def read_rows(self, start: int, stop: int) -> "torch.Tensor":
        width = math.prod(self.shape[1:])
        return self._read(start * width, stop * width).reshape(-1, *self.shape[1:])

    def _read(self, start: int, stop: int) -> "torch.Tensor":
        """Numbers [start, stop) of all its values.

        The file is not mapped into memory: a mapping ends the process when the file becomes shorter.
        """
        import torch

        if self.dtype not in _TORCH_NAMES:
            raise ExportError(f"'{self.file}' holds {self.name!r:.80} as {self.dtype}, which cannot be read.")
        dtype: torch.dtype = getattr(torch, _TORCH_NAMES[self.dtype])
        data = np.empty((stop - start) * dtype.itemsize, np.uint8)
        filled = 0
        with open(self.file, "rb", buffering=0, opener=unblocked) as file:
            file.seek(self.offset + start * dtype.itemsize)
            while filled < len(data) and (num_bytes := file.readinto(data[filled:].data)):
                filled += num_bytes
            if filled < len(data) or _state(file.fileno()) != self.state:
                raise _changed(self.file)
        return torch.from_numpy(data).view(dtype)


def _state(file: int) -> _State:
    state = os.fstat(file)
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _changed(path: Path) -> ExportError:
    return ExportError(f"'{path}' changed while it was read: export it again when it is whole.")


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """A folder's tensors by name. Nothing is read but headers, whose sizes the library compares with the files.

    Raises ExportError for a broken file, a tensor that is stored twice, and one that the index names but no file
    holds.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in weight_files(folder):
        for tensor in file_tensors(path):
            if tensor.name in tensors:
                raise ExportError(f"'{folder}' holds {tensor.name} in two files: fetch the model again.")
            tensors[tensor.name] = tensor
    for name, shard in shard_of_tensors(folder).items():
        if name not in tensors:
            raise ExportError(f"'{folder / shard}' lacks {name!r:.80}, which its index names: fetch the model again.")
    return tensors


def file_tensors(path: Path) -> list[StoredTensor]:
    """The tensors of one file, likewise."""
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as opened, safe_open(path, framework="numpy") as file:
            _check_layout(path, (file.metadata() or {}).get("format"))
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            offsets, state = _offsets(path, opened), _state(opened.fileno())
            return [
                SafetensorsTensor(name, path, tuple(each.get_shape()), str(each.get_dtype()), offsets[name], state)
                for name, each in slices.items()
            ]
    except MemoryError:  # the library maps a file, and no more than `ulimit -v` says can be mapped
        size = path.stat().st_size
        raise ExportError(
            f"The weights in '{path}' cannot be loaded: the system gives no room for {size} bytes; raise the limit of "
            "memory (ulimit -v), or fetch the model again."
        ) from None
    except SafetensorError as error:
        reason = (str(error).strip() or "broken").splitlines()[0]
        shown = reason if reason.isprintable() else repr(reason)  # it may quote the file
        raise ExportError(f"The weights in '{path}' cannot be loaded: {shown:.200}; fetch the model again.") from None


def _offsets(path: Path, file: BinaryIO) -> dict[str, int]:
    """Where each tensor begins in a file whose header the library has checked, which does not tell it."""
    try:
        (num_bytes,) = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(num_bytes))
        return {name: 8 + num_bytes + entries[name]["data_offsets"][0] for name in entries if name != "__metadata__"}
    except (ValueError, LookupError, TypeError, OverflowError, MemoryError, RecursionError, struct.error):
        raise _changed(path) from None  # since the library read it


def _check_layout(path: Path, layout: str | None) -> None:
    """Raise ExportError where a file was saved by another library than PyTorch, which orders dimensions otherwise."""
    if layout not in (None, *_LAYOUTS):
        raise ExportError(
            f"'{path}' holds weights in the layout {layout!r:.40}, of which {', '.join(_LAYOUTS)} are read: save the "
            "model with PyTorch (AutoModelForCausalLM.from_pretrained(...).save_pretrained(...))."
        )
