"""Tensors at a fixed address, on the one device that every machine has."""

import numpy as np
import pytest

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.device.device_memory import ELEMENT_TYPES, DeviceArray, host_type


@pytest.mark.parametrize("data_type", ELEMENT_TYPES)
def test_what_was_written_is_read_at_the_same_address(data_type: str) -> None:
    memory = DeviceArray("cpu", data_type, (2, 3))
    address = memory.address
    for first in (0, 5):
        array = np.arange(first, first + 6).reshape(2, 3).astype(host_type(data_type))
        memory.write(array)
        found = memory.read()
        assert (found.dtype, found.tolist(), memory.address) == (array.dtype, array.tolist(), address)
    assert memory.num_bytes == 6 * np.dtype(host_type(data_type)).itemsize


def test_an_array_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"an array \(3, 2\) for a tensor \(2, 3\)"):
        DeviceArray("cpu", "float32", (2, 3)).write(np.zeros((3, 2), np.float32))


def test_memory_that_cannot_be_had_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"4\.0 GB of memory on nowhere cannot be had: lower max_batch\."):
        DeviceArray("nowhere", "float32", (10**9,))
