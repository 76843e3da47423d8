"""int8 weights with a scale per output, int8 activations with a scale per row.

ONNX Runtime's own dynamic quantisation scales activations per tensor, so that a node's logits depend on its
neighbours; here each row has its own scale, and integer sums are the same in any order.
"""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor, matrix_shape
from reader_edge_export.operators import row_linear

Float32Array = npt.NDArray[np.float32]
Int8Array = npt.NDArray[np.int8]

_ZERO_POINT = 128  # unsigned activations: ONNX Runtime's signed kernels are up to 20 times slower on x86
_SMALLEST_SCALE = 1e-9


def quantize_columns(weight: Float32Array) -> tuple[Int8Array, Float32Array]:
    """weight (K, J) -> int8 (K, J) in [-127, 127] and scales (J,)."""
    scales = np.abs(weight).max(axis=0) / np.float32(127)
    scales[scales == 0] = 1
    return np.clip(np.rint(weight / scales), -127, 127).astype(np.int8), scales.astype(np.float32)


def store_columns(editor: GraphEditor, weight: Float32Array, name: str) -> tuple[ir.Value, ir.Value]:
    """The int8 form of a weight (K, J), and its scales (J,), as initializers.

    It is stored as (J, K), one row of inputs for each output: a lookup or a product reads whole runs of memory.
    """
    quantized, scales = quantize_columns(weight)
    return editor.constant(np.ascontiguousarray(quantized.T), f"{name}.int8"), editor.constant(scales, f"{name}.scale")


class Int8Products:
    """rows (..., K) are quantised row by row, multiplied as integers and scaled back.

    is_portable: only operators of the ONNX standard; else the operator RowLinear.
    """

    def __init__(self, editor: GraphEditor, is_portable: bool) -> None:
        self._editor = editor
        self._is_portable = is_portable
        self._zero_points: dict[tuple[object, ...], ir.Value] = {}
        self._shapes: dict[tuple[object, ...], ir.Value] = {}

    def multiply(self, rows: ir.Value, weight: Float32Array, bias: ir.Value | None, name: str) -> ir.Value:
        """rows (..., K) times weight (K, J), plus the bias (J,) -> (..., J)."""
        stored, scales = store_columns(self._editor, weight, name)
        return self.multiply_stored(rows, stored, scales, bias)

    def multiply_stored(self, rows: ir.Value, stored: ir.Value, scales: ir.Value, bias: ir.Value | None) -> ir.Value:
        """rows (..., K) times the transpose of the stored int8 matrix (J, K) with scales (J,), plus the bias (J,)."""
        if not self._is_portable:
            return row_linear(self._editor, rows, stored, scales, bias)
        product = self._portable_product(rows, stored, scales)
        return product if bias is None else self._editor.op("Add", [product, bias])

    def _portable_product(self, rows: ir.Value, stored: ir.Value, scales: ir.Value) -> ir.Value:
        editor = self._editor
        num_outputs, num_inputs = matrix_shape(stored)
        is_flat = rows.shape is not None and len(rows.shape) == 2
        flat = rows if is_flat else editor.op("Reshape", [rows, editor.int64s(-1, num_inputs)])
        row_scales = self._row_scales(flat)
        zero_point = editor.constant(np.array(_ZERO_POINT, np.uint8), "zero_point")
        inputs = [self._quantize(rows, flat, row_scales), editor.transpose(stored, 1, 0), zero_point]
        product = editor.op("MatMulInteger", inputs, dtype=ir.DataType.INT32)
        scaled = editor.op("Mul", [editor.cast(product, ir.DataType.FLOAT), scales])
        result = editor.op("Mul", [scaled, editor.op("Unsqueeze", [row_scales, editor.int64s(1)])])
        return result if is_flat else editor.op("Reshape", [result, self._shape_like(rows, num_outputs)])

    def _row_scales(self, flat: ir.Value) -> ir.Value:
        editor = self._editor
        largest = editor.op("ReduceMax", [editor.op("Abs", [flat]), editor.int64s(1)], {"keepdims": 0})
        scales = editor.op("Mul", [largest, editor.scalar(1 / 127)])
        return editor.op("Max", [scales, editor.scalar(_SMALLEST_SCALE)])

    def _quantize(self, rows: ir.Value, flat: ir.Value, row_scales: ir.Value) -> ir.Value:
        editor = self._editor
        key = _leading_sizes(rows)
        if key not in self._zero_points:
            zero = editor.constant(np.array([_ZERO_POINT], np.uint8), "zero_points")
            shape = editor.op("Shape", [row_scales], dtype=ir.DataType.INT64)
            self._zero_points[key] = editor.op("Expand", [zero, shape], dtype=ir.DataType.UINT8)
        inputs = [flat, row_scales, self._zero_points[key]]
        return editor.op("QuantizeLinear", inputs, {"axis": 0}, dtype=ir.DataType.UINT8)

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
