"""Sizes that are numbers, free sizes by their names, and nothing about sizes that no inference tells."""

import onnx
import onnx_ir as ir
import pytest

from reader_edge_export.size_inference import SizeInference
from reader_edge_runtime.errors import ExportError

HEADER = '<ir_version: 8, opset_import: ["" : 18]> one (int64[B,N] input_ids, float[B,N,12] x)'


def infer(nodes: str, output: str) -> tuple[SizeInference, dict[str, ir.Value]]:
    graph = ir.from_proto(onnx.parser.parse_model(f"{HEADER} => ({output}) {{ {nodes} }}")).graph
    return SizeInference.of(graph), {value.name or "": value for node in graph for value in node.outputs}


def test_sizes_keep_their_names_through_arithmetic_on_them() -> None:
    nodes = """
        shape = Shape (input_ids)
        zero = Constant <value_ints = [0]> ()
        batch = Gather (shape, zero)
        rest = Constant <value_ints = [-1, 3, 4]> ()
        sizes = Concat <axis = 0> (batch, rest)
        y = Reshape (x, sizes)
    """
    found, values = infer(nodes, "float[B,N,3,4] y")
    assert found.contents[values["shape"]] == ("B", "N")
    assert found.contents[values["sizes"]] == ("B", -1, 3, 4)
    assert found.sizes[values["y"]] == ("B", "N", 3, 4)
    assert found.data_types[values["y"]] == ir.DataType.FLOAT
    assert found.data_types[values["sizes"]] == ir.DataType.INT64


def test_what_part_of_a_shape_is_asked_for_is_heeded() -> None:
    found, values = infer("y = Shape <start = 1> (x)", "int64[2] y")
    assert found.contents[values["y"]] == ("N", 12)


def test_sizes_that_depend_on_numbers_of_the_run_are_not_known() -> None:
    found, values = infer("places = NonZero (x)  y = Shape (places)", "int64[2] y")
    assert found.sizes[values["places"]] == (3, None)
    assert values["y"] not in found.contents


def test_sum_of_free_sizes_has_no_name() -> None:
    found, values = infer("y = Concat <axis = 1> (x, x)", "float[B,K,12] y")
    assert found.sizes[values["y"]] == ("B", None, 12)


def test_operator_that_onnx_does_not_know_is_one_sentence() -> None:
    with pytest.raises(ExportError, match="ONNX cannot infer the operator Riddle"):
        infer("y = Riddle (x)", "float[B] y")
