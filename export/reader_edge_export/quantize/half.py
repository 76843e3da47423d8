"""Weights, activations and KV cache in fp16 or bf16: what GPUs multiply.

Angles of rotary embeddings stay fp32 until their cosine is taken (fp16 has no odd positions beyond 2,048), norms sum in
fp32 by their own definition, and logits leave the graph as fp32.
"""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor, weight_of
from reader_edge_export.sources.weights import Matrix, matrix_of
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import HALF_PRECISIONS

_MASKS = ("tree_mask", "tree_mask_sliding")

# Far below any score, and a score added to it still is a number in fp16: a row that sees nothing must stay finite.
_MASKED_HALF = -3e4


def convert_to_half(editor: GraphEditor, precision: str) -> None:
    """Give the graph's numbers the type of one of HALF_PRECISIONS; masks and logits stay fp32 at the border.

    Raises ExportError where a weight does not fit.
    """
    _HalfPrecision(editor, ir.DataType[HALF_PRECISIONS[precision].upper()]).convert()


def store_in_half(editor: GraphEditor) -> None:
    """Give matrices and the products by them fp16, which all else stays out of: for engines without fused norms.

    Raises ExportError where a weight does not fit.
    """
    halves = _HalfPrecision(editor, ir.DataType.FLOAT16)
    for node in list(editor.graph):
        halves.narrow(node)


class _HalfPrecision:
    """halves: fp32 value -> its half-precision form, made once."""

    def __init__(self, editor: GraphEditor, data_type: ir.DataType) -> None:
        self._editor = editor
        self._data_type = data_type
        self._halves: dict[ir.Value, ir.Value] = {}

    def convert(self) -> None:
        graph = self._editor.graph
        nodes = list(graph)
        of_positions = _nodes_of_positions(graph)
        for value in graph.inputs:
            if value.name not in _MASKS and value.dtype == ir.DataType.FLOAT:
                value.dtype = self._data_type
        for node in nodes:
            if node not in of_positions:
                self._convert_node(node)
        self._widen_logits()

    def narrow(self, node: ir.Node) -> None:
        """Convert a node that reads a matrix, or what is made of one; its other results become fp32 again."""
        if not any(value is not None and self._is_matrix(value) for value in node.inputs):
            return
        self._convert_node(node)
        output = node.outputs[0]
        if node.op_type == "Transpose":
            return
        readers = list(output.uses())
        wide = self._editor.cast(output, ir.DataType.FLOAT)
        wide.shape = output.shape
        for reader, index in readers:
            reader.replace_input_with(index, wide)
        self._editor.insert_after(node)

    def _is_matrix(self, value: ir.Value) -> bool:
        maker = value.producer()
        is_transposed = maker is not None and maker.op_type == "Transpose" and value.dtype == self._data_type
        return is_transposed or matrix_of(value) is not None

    def _convert_node(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == ir.DataType.FLOAT:
                node.replace_input_with(index, self._half(value))
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", int(self._data_type))
        for output in node.outputs:
            if output.dtype == ir.DataType.FLOAT:
                output.dtype = self._data_type

    def _half(self, value: ir.Value) -> ir.Value:
        if value not in self._halves:
            matrix, array = matrix_of(value), weight_of(value)
            if matrix is not None:
                self._halves[value] = self._matrix(matrix)
            elif array is None:
                self._halves[value] = self._cast(value)
            else:
                name = value.name or "weight"
                self._halves[value] = self._editor.constant(self._rounded(array, name), name)
        return self._halves[value]

    def _matrix(self, matrix: Matrix) -> ir.Value:
        """Rounded when it is written."""

        def rounded() -> ir.TensorProtocol:
            return ir.Tensor(self._rounded(matrix.read(), matrix.name))

        tensor = ir.LazyTensor(rounded, self._data_type, ir.Shape(matrix.shape), name=f"{matrix.name}.half")
        return self._editor.initializer(tensor)

    def _rounded(self, array: npt.NDArray[np.generic], name: str) -> npt.NDArray[np.generic]:
        with np.errstate(over="ignore"):
            half = np.ascontiguousarray(array).astype(self._data_type.numpy())
        if not np.isfinite(half).all():
            raise ExportError(f"The weight {name} has values beyond the range of fp16: use --precision bf16.")
        return half

    def _cast(self, value: ir.Value) -> ir.Value:
        editor, source = self._editor, value
        if value.name in _MASKS:
            source = editor.op("Max", [value, editor.scalar(_MASKED_HALF)])
        half = editor.cast(source, self._data_type)
        half.shape = value.shape
        maker = value.producer()
        if maker is None:
            editor.insert_before(editor.graph[0])
        else:
            editor.insert_after(maker)
        return half

    def _widen_logits(self) -> None:
        editor, outputs = self._editor, self._editor.graph.outputs
        for index, value in enumerate(outputs):
            if value.name == "logits":
                wide = editor.cast(value, ir.DataType.FLOAT)
                value.name, wide.name, wide.shape = "logits.half", "logits", value.shape
                outputs[index] = wide
                editor.append()


def _nodes_of_positions(graph: ir.Graph) -> set[ir.Node]:
    """The nodes that depend on positions and sizes, and on nothing else that changes."""
    of_tokens = {value for value in graph.inputs if value.name != "position_ids"}
    nodes = set()
    for node in graph:
        if node.op_type not in ("Shape", "Size") and any(value in of_tokens for value in node.inputs):
            of_tokens.update(node.outputs)
        elif not all(value is None or value.const_value is not None for value in node.inputs):
            nodes.add(node)
    return nodes


def widen(model: ir.Model) -> None:
    """Make a bf16 graph its fp32 twin: the same weights, each widened whenever it is read, and the same structure."""
    for value in model.graph.initializers.values():
        if value.dtype == ir.DataType.BFLOAT16 and value.const_value is not None:
            value.const_value = _widened(value.const_value)
    for node in model.graph:
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.BFLOAT16:
            node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
    computed = (output for node in model.graph for output in node.outputs)
    for value in (*model.graph.inputs, *model.graph.initializers.values(), *computed):
        if value.dtype == ir.DataType.BFLOAT16:
            value.dtype = ir.DataType.FLOAT


def _widened(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    def read() -> ir.TensorProtocol:
        wide = tensor.numpy().astype(np.float32)
        if isinstance(tensor, ir.ExternalTensor):
            tensor.release()  # else all of the file stays mapped
        return ir.Tensor(wide, name=tensor.name)

    return ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape(tensor.shape.numpy()), name=tensor.name)
