"""Questions to the nodes around a value."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import weight_of


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes a value, if it is one of `op_types`."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in op_types else None


def consumers(value: ir.Value, op_type: str) -> Iterator[ir.Node]:
    """The nodes of a type that read a value; the graph may be edited meanwhile."""
    for use in list(value.uses()):
        if use.node.op_type == op_type:
            yield use.node


def number_of(value: ir.Value | None) -> float | None:
    """The number in a constant of one element."""
    array = weight_of(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def other_input(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The input of a two-input node beside `value`."""
    others = [side for side in node.inputs if side is not value]
    return others[0] if len(node.inputs) == 2 and len(others) == 1 else None


@dataclass(frozen=True, slots=True)
class Cut:
    """Elements [begin, end) of a value's last axis, of `size` elements."""

    source: ir.Value
    size: int
    begin: int
    end: int


def cut_of(value: ir.Value | None) -> Cut | None:
    """What a value is a run of, where a Split or a Slice along the last axis made it."""
    node = producer(value, "Split", "Slice")
    source = node.inputs[0] if node is not None else None
    size = source.shape[-1] if source is not None and source.shape is not None else None
    if value is None or node is None or source is None or not isinstance(size, int):
        return None
    bounds = _split_bounds(node, value) if node.op_type == "Split" else _slice_bounds(node, size)
    return Cut(source, size, *bounds) if bounds is not None else None


def _split_bounds(split: ir.Node, part: ir.Value) -> tuple[int, int] | None:
    widths = weight_of(split.inputs[1]) if len(split.inputs) > 1 else None
    if widths is None or split.attributes["axis"].as_int() != -1:
        return None
    ends = widths.cumsum().tolist()
    index = split.outputs.index(part)
    return ends[index] - int(widths[index]), ends[index]


def _slice_bounds(cut: ir.Node, size: int) -> tuple[int, int] | None:
    begin, end, axis, step = ([*map(number_of, cut.inputs[1:]), 1, 1])[:4]
    assert cut.inputs[0] is not None
    assert cut.inputs[0].shape is not None
    is_last = axis in (-1, len(cut.inputs[0].shape) - 1)
    if begin is None or end is None or begin < 0 or end < 0 or not is_last or step != 1:
        return None
    return int(begin), min(int(end), size)
