"""The types and sizes of a traced graph's values, by ONNX's own inference and folding of one node after the other.

The inference runs with numbers in the place of the free sizes ("B", "N", ...), twice and with different ones: a size
that stays is a number, one that changes along with a free size bears its name, and any other is not known (None).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir
from onnxscript.optimizer import fold_constants

from reader_edge_export.graph_editor import matrix_shape
from reader_edge_export.markers import ATTENTION_SIZES, LOGIT_HEAD, TREE_ATTENTION
from reader_edge_runtime.errors import ExportError

Size = int | str | None
Sizes = tuple[Size, ...]

_FREE_SIZES = {"B": (7, 23), "N": (11, 29), "M": (13, 31), "S": (17, 37), "R": (19, 41)}
_NAMES: dict[tuple[object, object], str] = {numbers: name for name, numbers in _FREE_SIZES.items()}
_MAX_CONTENT = 8


@dataclass(slots=True)
class SizeInference:
    """data_types, sizes: of each value. contents: the elements of integer vectors and scalars that hold sizes."""

    data_types: dict[ir.Value, ir.DataType] = field(default_factory=dict)
    sizes: dict[ir.Value, Sizes] = field(default_factory=dict)
    contents: dict[ir.Value, Sizes] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: ir.Graph) -> "SizeInference":
        """Infer a traced graph. Raises ExportError for an operator that ONNX does not know."""
        first, second = (_numbered(graph, run) for run in range(2))
        found = cls()
        for value in (
            *graph.inputs,
            *graph.initializers.values(),
            *(value for node in graph for value in node.outputs),
        ):
            one, other = (values.get(value.name, value) for values in (first, second))  # initializers are as they were
            if one.dtype is None:
                node = value.producer()
                raise ExportError(f"ONNX cannot infer the operator {node and node.op_type} of this model.")
            found.data_types[value] = one.dtype
            if one.shape is not None and other.shape is not None:
                found.sizes[value] = _named(one.shape, other.shape)
            content, other_content = _content(one), _content(other)
            if content is not None and other_content is not None and len(content) == len(other_content):
                found.contents[value] = _named(content, other_content)
        return found


def _named(first: Iterable[object], second: Iterable[object]) -> Sizes:
    """The numbers that stay, and the names of those that change; None for a size that is no number."""
    pairs = zip(first, second, strict=True)
    return tuple(a if a == b and isinstance(a, int) else _NAMES.get((a, b)) for a, b in pairs)


def _content(value: ir.Value) -> list[int] | None:
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.INT64 or tensor.size > _MAX_CONTENT:
        return None
    content: list[int] = tensor.numpy().ravel().tolist()
    return content


def _numbered(graph: ir.Graph, run: int) -> dict[str | None, ir.Value]:
    """A copy's inputs and all that it computes, by name, inferred with numbers for the free sizes."""
    model = ir.Model(graph.clone(), ir_version=8)
    inputs, outputs = model.graph.inputs, model.graph.outputs
    known: dict[ir.Value, Iterable[object]] = {value: value.shape or () for value in inputs}
    for node in model.graph:
        for output in node.outputs:
            output.shape = output.type = None
        known.update(zip(node.outputs, _marker_sizes(node), strict=False))
        outputs.extend(output for output in node.outputs if output not in outputs)  # so that none is folded away
    for value, sizes in known.items():
        value.dtype = value.dtype or ir.DataType.FLOAT
        value.shape = ir.Shape([size if isinstance(size, int) else _FREE_SIZES[str(size)][run] for size in sizes])
    fold_constants(model, onnx_shape_inference=True, should_fold=_is_small)
    return {value.name: value for value in (*inputs, *outputs)}


def _marker_sizes(node: ir.Node) -> list[Sizes]:
    """Of a marker's outputs; [] of any other node."""
    if node.op_type == TREE_ATTENTION:
        num_heads, num_kv_heads, head_dim = (node.attributes[name].as_int() for name in ATTENTION_SIZES)
        return [("B", num_heads, "N", head_dim), *[("B", num_kv_heads, "S", head_dim)] * 2]
    weight = node.inputs[1] if node.op_type == LOGIT_HEAD else None
    return [] if weight is None else [("B", "R", matrix_shape(weight)[0])]


def _is_small(node: ir.Node) -> bool:
    sizes = node.outputs[0].shape
    return sizes is not None and sizes.is_static() and math.prod(sizes.numpy()) <= _MAX_CONTENT
