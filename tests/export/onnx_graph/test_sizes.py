"""Sizes that are numbers, free sizes by their names, and nothing about sizes that no inference tells."""

import onnx
import onnx_ir as ir
import pytest

from reader_edge_export.onnx_graph.sizes import Sizes, infer_sizes
from reader_edge_runtime.errors import ExportError

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


def test_what_part_of_a_shape_is_asked_for_is_heeded() -> None:
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
