"""Graphs and their file of weights: sizes inferred, constants shared, tensors read back."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from reader_edge_export.onnx_graph.shared_constants import header
from reader_edge_export.onnx_graph.sizes import Sizes, infer_sizes
from reader_edge_export.onnx_graph.weight_file import WeightFile
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import WEIGHTS_NAME, file_entry
from tests.conftest import ROOT


def test_the_header_of_the_kernels_is_what_the_definitions_say() -> None:
    assert (ROOT / "native" / "src" / "shared_constants.h").read_text(encoding="utf-8") == header()


HEADER = '<ir_version: 8, opset_import: ["" : 18]> one (int64[B,N] input_ids, float[B,N,12] x)'


def infer(nodes: str, output: str) -> tuple[dict[str, Sizes], dict[str, ir.Value]]:
    """Contents and values by name."""
    graph = ir.from_proto(onnx.parser.parse_model(f"{HEADER} => ({output}) {{ {nodes} }}")).graph
    contents = {value.name or "": content for value, content in infer_sizes(graph).items()}
    return contents, {value.name or "": value for node in graph for value in node.outputs}


def sizes_of(value: ir.Value) -> list[int | str | None]:
    assert value.shape is not None
    return [size if isinstance(size, int) else size.value for size in value.shape]


def test_sizes_keep_their_names_through_arithmetic_on_them() -> None:
    nodes = """
        shape = Shape (input_ids)
        zero = Constant <value_ints = [0]> ()
        batch = Gather (shape, zero)
        rest = Constant <value_ints = [-1, 3, 4]> ()
        sizes = Concat <axis = 0> (batch, rest)
        cut = Reshape (x, sizes)
        y = Neg (cut)
    """
    contents, values = infer(nodes, "float[B,N,3,4] y")
    assert contents["shape"] == ("B", "N")
    assert contents["sizes"] == ("B", -1, 3, 4)
    assert sizes_of(values["cut"]) == ["B", "N", 3, 4]
    assert values["cut"].dtype == ir.DataType.FLOAT
    assert values["sizes"].dtype == ir.DataType.INT64


def test_the_wanted_part_of_a_shape_is_known() -> None:
    contents, _ = infer("y = Shape <start = 1> (x)", "int64[2] y")
    assert contents["y"] == ("N", 12)


def test_sizes_that_depend_on_numbers_of_the_run_are_not_known() -> None:
    contents, values = infer("places = NonZero (x)  y = Shape (places)", "int64[2] y")
    assert sizes_of(values["places"]) == [3, None]
    assert "y" not in contents


def test_sum_of_free_sizes_has_no_name() -> None:
    _, values = infer("twice = Concat <axis = 1> (x, x)  y = Neg (twice)", "float[B,K,12] y")
    assert sizes_of(values["twice"]) == ["B", None, 12]


def test_operator_that_onnx_does_not_know_is_one_sentence() -> None:
    with pytest.raises(ExportError, match="ONNX cannot infer the operator Riddle"):
        infer("y = Riddle (x)", "float[B] y")


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
