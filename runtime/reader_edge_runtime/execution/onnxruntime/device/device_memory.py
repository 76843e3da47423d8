"""Tensors at a fixed address of a device, written and read from numpy."""

import math
from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.wheel import ort

ELEMENT_TYPES = {"float32": 1, "int64": 7, "float16": 10, "bfloat16": 16}  # ONNX's numbers


def host_type(data_type: str) -> str:
    """The numpy type that holds an element's bits: numpy has no bfloat16."""
    return "uint16" if data_type == "bfloat16" else data_type


class DeviceArray:
    """A tensor on "cpu" or "cuda"; its address never changes, so that bindings and captured passes hold."""

    def __init__(self, device: str, data_type: str, shape: Sequence[int]) -> None:
        self.device = device
        self.data_type = data_type
        self.shape = tuple(shape)
        self.num_bytes = math.prod(shape) * np.dtype(host_type(data_type)).itemsize
        try:
            self.value = ort.OrtValue.ortvalue_from_shape_and_type(list(shape), ELEMENT_TYPES[data_type], device)
        except Exception as error:  # onnxruntime raises unrelated classes here
            gigabytes = self.num_bytes / 1e9
            raise ConfigError(f"{gigabytes:.1f} GB of memory on {device} cannot be had: lower max_batch.") from error
        self.address = int(self.value.data_ptr())

    def write(self, array: Array) -> None:
        """Copy an array of the same shape here; bfloat16 as its bits in uint16."""
        contiguous = np.ascontiguousarray(array, host_type(self.data_type))
        if contiguous.shape != self.shape:
            raise ValueError(f"an array {contiguous.shape} for a tensor {self.shape}")
        self.value.update_inplace(_as_bfloat16(contiguous) if self.data_type == "bfloat16" else contiguous)

    def read(self) -> Array:
        """A copy in the host's memory; bfloat16 as its bits in uint16."""
        if self.data_type != "bfloat16":
            return np.array(self.value.numpy())
        array = np.empty(self.shape, np.uint16)
        _as_bfloat16(array).update_inplace(self.value)
        return array


def _as_bfloat16(array: Array) -> ort.OrtValue:
    """A view of an array of uint16 as a tensor."""
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, ELEMENT_TYPES["bfloat16"])
