"""The types and sizes of a traced graph's values, by ONNX's own inference of one node after the other.

The inference runs with numbers in the place of the free sizes ("B", "N", ...), twice and with different ones: a size
that stays is a number, one that changes along with a free size bears its name, and any other is not known (None).
"""

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

Size = int | str | None
Sizes = tuple[Size, ...]

_FREE_SIZES = {"B": (7, 23), "N": (11, 29), "M": (13, 31), "S": (17, 37), "R": (19, 41)}
_NAMES = {numbers: name for name, numbers in _FREE_SIZES.items()}
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
        for value in (
            *graph.inputs,
            *graph.initializers.values(),
            *(output for node in graph for output in node.outputs),
        ):
            name = value.name or ""
            found.data_types[value] = ir.DataType(first.types[name].tensor_type.elem_type)
            found.sizes[value] = _named(_dims(first.types[name]), _dims(second.types[name]))
            content = first.contents.get(name)
            if content is not None and content.dtype == np.int64:
                found.contents[value] = _named(content.ravel().tolist(), second.contents[name].ravel().tolist())
        return found


def _named(first: list[int], second: list[int]) -> Sizes:
    return tuple(a if a == b else _NAMES.get((a, b)) for a, b in zip(first, second, strict=True))


def _dims(type_proto: onnx.TypeProto) -> list[int]:
    return [dim.dim_value for dim in type_proto.tensor_type.shape.dim]


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
            _, weight, rows = (_dims(types[name]) for name in node.input[:3])
            outputs = [onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [*rows, weight[0]])]
        else:
            known = {name: numpy_helper.from_array(self.contents[name]) for name in types if name in self.contents}
            inferred = infer_node_outputs(onnx.defs.get_schema(node.op_type, self._opset), node, types, known)
            outputs = [inferred[name] for name in node.output]
        self.types.update(zip(node.output, outputs, strict=True))
        if int(np.prod(_dims(outputs[0]))) <= _MAX_CONTENT:
            self._evaluate(node)

    def _evaluate(self, node: onnx.NodeProto) -> None:
        """What the node computes, where that is arithmetic on sizes."""
        if node.op_type == "Shape":
            self.contents[node.output[0]] = np.array(_dims(self.types[node.input[0]]), np.int64)
        elif all(name in self.contents for name in node.input):
            results: Any = ReferenceEvaluator(node).run(None, {name: self.contents[name] for name in node.input})
            self.contents.update(zip(node.output, results, strict=True))
