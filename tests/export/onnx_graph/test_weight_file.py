"""The file of weights: what was added is read back, its checksum is that of the file, large tensors begin at pages."""

from pathlib import Path

import numpy as np
import onnx_ir as ir

from reader_edge_export.onnx_graph.weight_file import WeightFile
from reader_edge_runtime.package.manifest import WEIGHTS_NAME, file_entry


def test_tensors_are_read_back_and_the_checksum_is_the_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((3, 5), np.float32), rng.integers(-9, 9, (300, 400), np.int8), np.ones(7, np.float16)]
    with WeightFile(tmp_path) as file:
        tensors = [file.add(array, ir.DataType.from_numpy(array.dtype), f"w{i}") for i, array in enumerate(arrays)]
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    assert [tensor.offset for tensor in tensors[:2]] == [0, 4096]
    assert tensors[2].offset is not None
    assert tensors[2].offset % 64 == 0
    assert file.entry == file_entry(tmp_path / WEIGHTS_NAME)


def test_columns_are_written_as_rows_of_their_shape(tmp_path: Path) -> None:
    columns = np.arange(12, dtype=np.float32).reshape(3, 4).T
    with WeightFile(tmp_path) as file:
        tensor = file.add(columns, ir.DataType.FLOAT, "columns")
    np.testing.assert_array_equal(tensor.numpy(), columns)


def test_small_tensors_stay_in_the_graph(tmp_path: Path) -> None:
    with WeightFile(tmp_path) as file:
        assert not file.takes(255)
        assert file.takes(256)
