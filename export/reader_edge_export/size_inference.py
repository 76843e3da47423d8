"""The types and sizes of a traced graph's values, by ONNX's own inference of one node after the other.

The inference runs with numbers in the place of the free sizes ("B", "N", ...), twice and with different ones: a size
that stays is a number, one that changes along with a free size bears its name, and any other is not known (None).
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_node_outputs

from reader_edge_export.markers import LOGIT_HEAD, TREE_ATTENTION
from reader_edge_runtime.errors import ExportError

Size = int | str | None
Sizes = tuple[Size, ...]
Dims = list[int | None]

_FREE_SIZES = {"B": (7, 23), "N": (11, 29), "M": (13, 31), "S": (17, 37), "R": (19, 41)}
_NAMES: dict[tuple[int | None, int | None], str] = {numbers: name for name, numbers in _FREE_SIZES.items()}
_MAX_CONTENT = 8


@dataclass(slots=True)
class SizeInference:
    """data_types, sizes: of each value. contents: the elements of integer vectors and scalars that hold sizes."""

    data_types: dict[ir.Value, ir.DataType] = field(default_factory=dict)
    sizes: dict[ir.Value, Sizes] = field(default_factory=dict)
    contents: dict[ir.Value, Sizes] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: ir.Graph) -> "SizeInference":
        """Infer a traced graph."""
        first, second = (_NumericInference(graph, run) for run in range(2))
        found = cls()
        computed = (output for node in graph for output in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *computed):
            name = value.name or ""
            found.data_types[value] = ir.DataType(first.types[name].tensor_type.elem_type)
            dims, other_dims = _dims(first.types[name]), _dims(second.types[name])
            if dims is not None and other_dims is not None:
                found.sizes[value] = _named(dims, other_dims)
            content, other = first.contents.get(name), second.contents.get(name)
            if content is not None and other is not None and content.dtype == np.int64 and content.size == other.size:
                found.contents[value] = _named(content.ravel().tolist(), other.ravel().tolist())
        return found


def _named(first: Dims, second: Dims) -> Sizes:
    return tuple(a if a == b else _NAMES.get((a, b)) for a, b in zip(first, second, strict=True))


def _dims(type_proto: onnx.TypeProto) -> Dims | None:
    """The sizes of a tensor as far as they are inferred."""
    tensor = type_proto.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]


class _NumericInference:
    """One run, by names of values; types: with numbers for sizes. contents: small integer arrays as they come out."""

    def __init__(self, graph: ir.Graph, run: int) -> None:
        self._run = run
        self._opset = graph.opset_imports[""]
        self.types: dict[str, onnx.TypeProto] = {}
        self.contents: dict[str, npt.NDArray[np.generic]] = {}
        for value in (*graph.inputs, *graph.initializers.values()):
            self._note(value)
        for node in graph:
            self._infer(ir.to_proto(node))

    def _note(self, value: ir.Value) -> None:
        assert value.name is not None
        assert value.shape is not None
        assert value.dtype is not None
        sizes = [size if isinstance(size, int) else _FREE_SIZES[str(size.value)][self._run] for size in value.shape]
        self.types[value.name] = onnx.helper.make_tensor_type_proto(int(value.dtype), sizes)
        array = value.const_value
        if array is not None and array.dtype == ir.DataType.INT64 and array.size <= _MAX_CONTENT:
            self.contents[value.name] = array.numpy()

    def _infer(self, node: onnx.NodeProto) -> None:
        types = {name: self.types[name] for name in node.input if name}
        if node.op_type == TREE_ATTENTION:
            outputs = [types[node.input[index]] for index in (0, 3, 4)]  # as the query and the past are
        elif node.op_type == LOGIT_HEAD:
            _, weight, rows = (_dims(types[name]) or [] for name in node.input[:3])
            outputs = [onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [*rows, weight[0]])]
        else:
            outputs = self._standard_outputs(node, types)
        self.types.update(zip(node.output, outputs, strict=True))
        dims = _dims(outputs[0])
        if dims is not None and math.prod(_MAX_CONTENT + 1 if size is None else size for size in dims) <= _MAX_CONTENT:
            self._evaluate(node)

    def _standard_outputs(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> list[onnx.TypeProto]:
        known = {name: numpy_helper.from_array(self.contents[name]) for name in types if name in self.contents}
        try:
            inferred = infer_node_outputs(onnx.defs.get_schema(node.op_type, self._opset), node, types, known)
        except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ExportError(f"ONNX cannot infer the operator {node.op_type} of this model ({reason}).") from error
        return [inferred.get(name, onnx.TypeProto()) for name in node.output]

    def _evaluate(self, node: onnx.NodeProto) -> None:
        """What the node computes, where that is arithmetic on sizes."""
        feeds = {name: self.contents[name] for name in node.input if name in self.contents}
        if node.op_type == "Shape":
            sizes = _dims(self.types[node.input[0]])
            if sizes is not None and None not in sizes:
                feeds = {node.input[0]: np.broadcast_to(np.int64(0), [size or 0 for size in sizes])}
        if feeds.keys() == set(node.input):
            results: Any = ReferenceEvaluator(node).run(None, feeds)
            self.contents.update(zip(node.output, results, strict=True))
