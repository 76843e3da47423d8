"""Tensors at a fixed address of a device, written and read from numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from reader_edge_runtime.errors import ConfigError

Array = npt.NDArray[Any]

# ONNX's numbers for element types, and the numpy type that holds one of them; numpy has no bfloat16.
ELEMENT_TYPES = {"float32": 1, "int64": 7, "float16": 10, "bfloat16": 16}
_HOST_TYPES: dict[str, npt.DTypeLike] = {
    "float32": np.float32,
    "int64": np.int64,
    "float16": np.float16,
    "bfloat16": np.uint16,
}


class DeviceArray:
    """A tensor on "cpu" or "cuda"; its address never changes, so that bindings and captured passes hold."""

    def __init__(self, device: str, data_type: str, shape: Sequence[int]) -> None:
        self.device = device
        self.data_type = data_type
        self.shape = tuple(shape)
        try:
            self.value = ort.OrtValue.ortvalue_from_shape_and_type(list(shape), ELEMENT_TYPES[data_type], device)
        except Exception as error:  # onnxruntime raises unrelated classes here
            gigabytes = self.num_bytes / 1e9
            raise ConfigError(f"{gigabytes:.1f} GB of memory on {device} cannot be had: lower max_batch.") from error

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.item_bytes

    @property
    def item_bytes(self) -> int:
        return np.dtype(_HOST_TYPES[self.data_type]).itemsize

    @property
    def address(self) -> int:
        return int(self.value.data_ptr())

    def write(self, array: Array) -> None:
        """Copy an array of the same shape here; bfloat16 as its bits in uint16."""
        contiguous = np.ascontiguousarray(array, _HOST_TYPES[self.data_type])
        if contiguous.shape != self.shape:
            raise ValueError(f"an array {contiguous.shape} for a tensor {self.shape}")
        if self.data_type == "bfloat16":
            self.value.update_inplace(_typed(contiguous, self.data_type))
        else:
            self.value.update_inplace(contiguous)

    def read(self) -> Array:
        """A copy in the host's memory; bfloat16 as its bits in uint16."""
        if self.data_type == "bfloat16":
            array = np.empty(self.shape, np.uint16)
            _typed(array, self.data_type).update_inplace(self.value)
            return array
        return np.array(self.value.numpy())


def _typed(array: Array, data_type: str) -> ort.OrtValue:
    """A view of an array as a tensor of a type that numpy lacks."""
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, ELEMENT_TYPES[data_type])
