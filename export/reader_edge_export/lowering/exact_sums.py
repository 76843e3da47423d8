"""Attention's sums over the visible KV rows, the same bits in any order: in float64, or of integers.

float64: its reordering error of 1e-16 vanishes in the final rounding to fp32 (but for a sum that lies within 1e-15 of a
rounding boundary). Integers add up exactly in it.
"""

import numpy as np
import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.shared_constants import SMALLEST

_FLOAT, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def exponentials(editor: GraphEditor, scores: ir.Value) -> ir.Value:
    """Of scores (B, H, R, M), against the largest of their row, which no order changes."""
    return editor.op("Exp", [editor.op("Sub", [scores, _largest(editor, scores)])])


def float64_mean(editor: GraphEditor, weights: ir.Value, values: ir.Value) -> ir.Value:
    """fp32 weights (B, H, R, M) over their sum, times values (B, H, M, D) -> (B, H, R, D); the sums in float64."""
    wide = editor.cast(weights, _DOUBLE)
    product = float64(editor, "MatMul", wide, editor.cast(values, _DOUBLE))
    return editor.cast(float64(editor, "Div", product, _total(editor, wide)), _FLOAT)


def integer_mean(
    editor: GraphEditor, weights: ir.Value, num_steps: int, values: ir.Value, magnitudes: ir.Value, value_steps: int
) -> ir.Value:
    """The same of weights as integers, num_steps the largest, and values that are integers in float64.

    magnitudes: of each row of values (B, H, M, 1), which its integers are in value_steps of.
    """
    scaled = editor.op("Mul", [weights, editor.transpose(magnitudes, 0, 1, 3, 2)])
    tops = positive(editor, _largest(editor, scaled))
    product = float64(editor, "MatMul", integers(editor, scaled, tops, num_steps), values)
    units = float64(editor, "Div", editor.cast(tops, _DOUBLE), _exact_total(editor, weights))
    unit = editor.constant(np.array(1 / (num_steps * value_steps)), "unit")
    return editor.cast(float64(editor, "Mul", product, float64(editor, "Mul", units, unit)), _FLOAT)


def integers(editor: GraphEditor, numbers: ir.Value, largest: ir.Value, num_steps: int) -> ir.Value:
    """Numbers in steps of their row's largest, as float64."""
    steps = editor.op("Mul", [numbers, editor.op("Div", [editor.scalar(num_steps), largest])])
    zero_point = editor.constant(np.array(0, np.int16), "zero_point")
    rounded = editor.op("QuantizeLinear", [steps, editor.scalar(1), zero_point], dtype=ir.DataType.INT16)
    return editor.cast(rounded, _DOUBLE)


def magnitudes_of(editor: GraphEditor, rows: ir.Value) -> ir.Value:
    """The largest magnitude of each row (..., D) -> (..., 1), above zero."""
    return positive(editor, _largest(editor, editor.op("Abs", [rows])))


def positive(editor: GraphEditor, numbers: ir.Value) -> ir.Value:
    """Numbers, those of zero raised a little."""
    return editor.op("Max", [numbers, editor.scalar(SMALLEST)])


def float64(editor: GraphEditor, op_type: str, *inputs: ir.Value) -> ir.Value:
    """An operator on float64."""
    return editor.op(op_type, inputs, dtype=_DOUBLE)


def _exact_total(editor: GraphEditor, weights: ir.Value) -> ir.Value:
    """The sum of weights of at most one, each rounded to steps of 2**-22 by adding two: so many add up exactly."""
    raised = editor.cast(editor.op("Add", [weights, editor.scalar(2)]), _DOUBLE)
    num_weights, two = (editor.cast(value, _DOUBLE) for value in (editor.size_of(weights, 3), editor.scalar(2)))
    return float64(editor, "Sub", _total(editor, raised), float64(editor, "Mul", num_weights, two))


def _largest(editor: GraphEditor, value: ir.Value) -> ir.Value:
    return editor.op("ReduceMax", [value, editor.int64s(-1)], {"keepdims": 1})


def _total(editor: GraphEditor, wide: ir.Value) -> ir.Value:
    return editor.op("ReduceSum", [wide, editor.int64s(-1)], {"keepdims": 1}, dtype=_DOUBLE)
