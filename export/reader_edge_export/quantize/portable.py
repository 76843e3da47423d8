"""Products of rotated int8 rows by operators of the ONNX standard alone: what `operators.py` defines, spelled out."""

import numpy as np
import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor, constant_shape
from reader_edge_export.onnx_graph.shared_constants import BASE, SMALLEST, STEPS, STEPS_16, ZERO_POINT
from reader_edge_export.operators.definitions import Int8Matrix

_PLANE_STEPS = {1: STEPS, 2: STEPS_16}


class PortableProducts:
    """num_planes: of int8 that a row is rounded to, one or two."""

    def __init__(self, editor: GraphEditor, num_planes: int) -> None:
        self._editor = editor
        self._num_planes = num_planes
        self._shapes: dict[tuple[object, ...], ir.Value] = {}

    def multiply(self, rows: ir.Value, matrix: Int8Matrix, bias: ir.Value | None) -> ir.Value:
        """rows (..., K) times the transpose of the matrix (J, K), plus the bias (J,) -> (..., J)."""
        editor = self._editor
        num_outputs, num_inputs = constant_shape(matrix.values)
        is_flat = rows.shape is not None and len(rows.shape) == 2
        rotation = self._rotation(rows, matrix, num_inputs)
        most = editor.scalar(_PLANE_STEPS[self._num_planes])
        top = editor.op("Max", [self._largest(rotation), editor.scalar(SMALLEST)])
        in_steps = editor.op("Mul", [rotation, editor.op("Div", [most, top])])
        scales = editor.op("Div", [matrix.scales, most])
        product = (self._product if self._num_planes == 1 else self._product_16)(in_steps, matrix.values, scales)
        result = editor.op("Mul", [product, top])
        if not is_flat:
            result = editor.op("Reshape", [result, self._shape_like(rows, num_outputs)])
        return result if bias is None else editor.op("Add", [result, bias])

    def _rotation(self, rows: ir.Value, matrix: Int8Matrix, num_inputs: int) -> ir.Value:
        """rows (..., K) -> (R, K), rotated."""
        editor, block = self._editor, constant_shape(matrix.hadamard)[0]
        smoothed = editor.op("Mul", [rows, matrix.smoothing])
        flat = editor.op("Reshape", [smoothed, editor.int64s(-1, num_inputs)])
        height = editor.op("Mul", [self._largest(flat), editor.scalar(2 * block)])
        rounded = editor.op("Sub", [editor.op("Add", [flat, height]), height])
        blocks = editor.op("Reshape", [rounded, editor.int64s(-1, block)])
        return editor.op("Reshape", [editor.op("MatMul", [blocks, matrix.hadamard]), editor.int64s(-1, num_inputs)])

    def _largest(self, flat: ir.Value) -> ir.Value:
        """The largest magnitude of each row (R, K): (R, 1)."""
        editor = self._editor
        return editor.op("ReduceMax", [editor.op("Abs", [flat]), editor.int64s(1)], {"keepdims": 1})

    def _product(self, in_steps: ir.Value, values: ir.Value, scales: ir.Value) -> ir.Value:
        """Rows (R, K), at most 127 steps, times the transpose of int8 values (J, K), times scales (J,): (R, J)."""
        editor = self._editor
        zero_point = editor.constant(np.array(ZERO_POINT, np.uint8), "zero_point")
        rounded = editor.op("QuantizeLinear", [in_steps, editor.scalar(1), zero_point], dtype=ir.DataType.UINT8)
        inputs = [rounded, editor.transpose(values, 1, 0), zero_point]
        product = editor.op("MatMulInteger", inputs, dtype=ir.DataType.INT32)
        return editor.op("Mul", [editor.cast(product, ir.DataType.FLOAT), scales])

    def _product_16(self, in_steps: ir.Value, values: ir.Value, scales: ir.Value) -> ir.Value:
        """The same of rows of at most 32639 steps, as two planes in one product."""
        editor = self._editor
        steps, base = editor.op("Round", [in_steps]), editor.scalar(BASE)
        raised = editor.op("Add", [steps, editor.scalar(ZERO_POINT)])
        high = editor.op("Floor", [editor.op("Mul", [raised, editor.scalar(1 / BASE)])])
        low = editor.op("Sub", [steps, editor.op("Mul", [high, base])])
        products = self._product(editor.op("Concat", [high, low], {"axis": 0}), values, scales)
        halves = editor.op_multi("Split", [products], 2, {"axis": 0, "num_outputs": 2})
        return editor.op("Add", [editor.op("Mul", [halves[0], base]), halves[1]])

    def _shape_like(self, rows: ir.Value, width: int) -> ir.Value:
        editor = self._editor
        key = (*_leading_sizes(rows), width)
        if key not in self._shapes:
            leading = editor.op("Shape", [rows], {"start": 0, "end": -1}, dtype=ir.DataType.INT64)
            sizes = [leading, editor.int64s(width)]
            self._shapes[key] = editor.op("Concat", sizes, {"axis": 0}, dtype=ir.DataType.INT64)
        return self._shapes[key]


def _leading_sizes(rows: ir.Value) -> tuple[object, ...]:
    """What identifies the sizes before the last: their names where all are known, else the value itself."""
    sizes = [] if rows.shape is None else [getattr(size, "value", size) for size in rows.shape][:-1]
    return tuple(sizes) if sizes and None not in sizes else (rows,)
