"""Attention whose bits do not depend on the width of the pass or on where a node's ancestors sit.

In fp32 the sum over the visible rows takes another order for one row than for several, and for scattered ancestors
than for adjacent ones. Here the exponentials are fp32 against the row's maximum, which no order changes, and the sums
over rows are of two kinds:

- float64, whose reordering error of 1e-16 vanishes in the final rounding to fp32 (but for a sum that lies within 1e-15
  of a rounding boundary);
- integers, for models whose weights are quantised: values in 2047 steps of their row's largest, softmax weights in
  16383 steps of their query's largest (the values' steps counted in), which add up exactly. Their rounding is a tenth
  of what the int8 rows of the next product lose; native kernels sum 16-bit integers four times as fast as float64.
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.lowering.kv_rows import masked_scores, scatter_rows, unfold_heads, visible_rows
from reader_edge_export.markers import TreeAttentionMarker
from reader_edge_export.operators import OPERATOR_DOMAIN, Definition

_FLOAT, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
_VALUE_STEPS = 2047
_WEIGHT_STEPS = 16383
_SMALLEST = 1e-30  # rows of zeros are divided by it


class ExactAttention:
    """TensorScatter into the cache, then an operator over the visible rows: ExactAttention or IntegerAttention.

    ExactAttention gives heads (B, Hq, N, D); IntegerAttention gives them side by side, as the next product wants them.
    """

    def __init__(self, editor: GraphEditor, is_quantized: bool) -> None:
        self._editor = editor
        self._is_quantized = is_quantized
        self._operator = "IntegerAttention" if is_quantized else "ExactAttention"
        self._defined: TreeAttentionMarker | None = None

    def lower(self, editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The marker's three outputs."""
        present = scatter_rows(editor, marker)
        if not self._is_defined_for(marker):
            return self._attend(editor, marker, *present), *present
        inputs = [marker.query, *present, marker.mask]
        output = editor.op(self._operator, inputs, {"scale": marker.scale}, domain=OPERATOR_DOMAIN)
        if self._is_quantized:
            sizes = editor.int64s(0, 0, marker.num_heads, marker.head_dim)
            output = editor.transpose(editor.op("Reshape", [output, sizes]), 0, 2, 1, 3)
        return output, *present

    def _is_defined_for(self, marker: TreeAttentionMarker) -> bool:
        """One definition serves all layers of a usual model; layers that differ are spelled out."""
        if marker.softcap or marker.head_dim % 8:
            return False
        if self._defined is None:
            self._define(marker)
            self._defined = marker
        return _form(marker) == _form(self._defined)

    def _define(self, marker: TreeAttentionMarker) -> None:
        definition = Definition(self._operator, "query", "keys", "values", "mask")
        editor, (query, keys, values, mask) = definition.editor, definition.inputs
        output = self._attend(editor, replace(marker, query=query, mask=mask), keys, values)
        if self._is_quantized:
            output = editor.op("Reshape", [editor.transpose(output, 0, 2, 1, 3), editor.int64s(0, 0, -1)])
        definition.add_to(self._editor, output, ["scale"])

    def _attend(self, editor: GraphEditor, marker: TreeAttentionMarker, keys: ir.Value, values: ir.Value) -> ir.Value:
        """Softmax over keys and values (B, H, S, D), the first M rows of which count -> (B, Hq, N, D)."""
        keys, values = visible_rows(editor, marker.mask, keys, values)
        scores = masked_scores(editor, marker, keys)
        weights = editor.op("Exp", [editor.op("Sub", [scores, _largest(editor, scores)])])
        weighted_sum = _integer_sum if self._is_quantized else _float64_sum
        return unfold_heads(editor, marker, weighted_sum(editor, weights, values))


def _form(marker: TreeAttentionMarker) -> tuple[float, ...]:
    return marker.scale, marker.num_kv_heads, marker.num_heads, marker.head_dim


def _float64_sum(editor: GraphEditor, weights: ir.Value, values: ir.Value) -> ir.Value:
    """fp32 weights (B, H, R, M) over their sum, times values (B, H, M, D) -> (B, H, R, D); the sums in float64."""
    wide = editor.cast(weights, _DOUBLE)
    product = _float64(editor, "MatMul", wide, editor.cast(values, _DOUBLE))
    return editor.cast(_float64(editor, "Div", product, _total(editor, wide)), _FLOAT)


def _integer_sum(editor: GraphEditor, weights: ir.Value, values: ir.Value) -> ir.Value:
    """The same of integer weights and values; float64 holds their sums, which are integers, exactly."""
    magnitudes = _positive(editor, _largest(editor, editor.op("Abs", [values])))
    scaled = editor.op("Mul", [weights, editor.transpose(magnitudes, 0, 1, 3, 2)])
    tops = _positive(editor, _largest(editor, scaled))
    integer_weights = _integers(editor, scaled, tops, _WEIGHT_STEPS)
    integer_values = _integers(editor, values, magnitudes, _VALUE_STEPS)
    product = _float64(editor, "MatMul", integer_weights, integer_values)
    units = _float64(editor, "Div", editor.cast(tops, _DOUBLE), _exact_total(editor, weights))
    unit = editor.constant(np.array(1 / (_WEIGHT_STEPS * _VALUE_STEPS)), "unit")
    return editor.cast(_float64(editor, "Mul", product, _float64(editor, "Mul", units, unit)), _FLOAT)


def _integers(editor: GraphEditor, numbers: ir.Value, largest: ir.Value, num_steps: int) -> ir.Value:
    """Numbers in steps of their row's largest, as float64."""
    steps = editor.op("Mul", [numbers, editor.op("Div", [editor.scalar(num_steps), largest])])
    zero_point = editor.constant(np.array(0, np.int16), "zero_point")
    rounded = editor.op("QuantizeLinear", [steps, editor.scalar(1), zero_point], dtype=ir.DataType.INT16)
    return editor.cast(rounded, _DOUBLE)


def _exact_total(editor: GraphEditor, weights: ir.Value) -> ir.Value:
    """The sum of weights of at most one, each rounded to steps of 2**-22 by adding two: so many add up exactly."""
    raised = editor.cast(editor.op("Add", [weights, editor.scalar(2)]), _DOUBLE)
    num_weights, two = (editor.cast(value, _DOUBLE) for value in (editor.size_of(weights, 3), editor.scalar(2)))
    return _float64(editor, "Sub", _total(editor, raised), _float64(editor, "Mul", num_weights, two))


def _largest(editor: GraphEditor, value: ir.Value) -> ir.Value:
    return editor.op("ReduceMax", [value, editor.int64s(-1)], {"keepdims": 1})


def _positive(editor: GraphEditor, numbers: ir.Value) -> ir.Value:
    return editor.op("Max", [numbers, editor.scalar(_SMALLEST)])


def _total(editor: GraphEditor, wide: ir.Value) -> ir.Value:
    return editor.op("ReduceSum", [wide, editor.int64s(-1)], {"keepdims": 1}, dtype=_DOUBLE)


def _float64(editor: GraphEditor, op_type: str, *inputs: ir.Value) -> ir.Value:
    return editor.op(op_type, inputs, dtype=_DOUBLE)
