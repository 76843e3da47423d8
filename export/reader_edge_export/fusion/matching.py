"""Questions to the nodes around a value."""

from collections.abc import Iterator

import onnx_ir as ir

from reader_edge_export.graph_editor import weight_of


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
