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

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.lowering.kv_rows import FoldedQuery, VisibleRows
from reader_edge_export.markers import TreeAttentionMarker
from reader_edge_export.operators import OPERATOR_DOMAIN, Definition

_VALUE_STEPS = 2047
_WEIGHT_STEPS = 16383
_SMALLEST = 1e-30  # rows of zeros are divided by it


class ExactAttention:
    """TensorScatter into the cache, then an operator over the visible rows: ExactAttention or IntegerAttention."""

    OPSET: ClassVar[int] = 24

    def __init__(self, editor: GraphEditor, is_quantized: bool) -> None:
        self._editor = editor
        self._softmax_type: type[_Softmax] = _IntegerSoftmax if is_quantized else _Float64Softmax
        self._softmax = self._softmax_type(editor)
        self._defined: TreeAttentionMarker | None = None

    def lower(self, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The marker's three outputs."""
        present_key, present_value = scatter_rows(self._editor, marker)
        if self._is_defined_for(marker):
            inputs = [marker.query, present_key, present_value, marker.mask]
            name = self._softmax_type.OPERATOR
            output = self._editor.op(name, inputs, {"scale": marker.scale}, domain=OPERATOR_DOMAIN)
            output = self._softmax.heads_of(marker, output)
        else:
            output = self._softmax.attend(marker, present_key, present_value)
        return output, present_key, present_value

    def _is_defined_for(self, marker: TreeAttentionMarker) -> bool:
        """One definition serves all layers of a usual model; layers that differ are spelled out."""
        if marker.softcap or marker.head_dim % 8:
            return False
        if self._defined is None:
            definition = Definition(self._softmax_type.OPERATOR, "query", "keys", "values", "mask")
            query, keys, values, mask = definition.inputs
            softmax = self._softmax_type(definition.editor)
            output = softmax.attend(replace(marker, query=query, mask=mask), keys, values)
            definition.add_to(self._editor, softmax.output_of(output), ["scale"])
            self._defined = marker
        return _form(marker) == _form(self._defined)


def _form(marker: TreeAttentionMarker) -> tuple[float, ...]:
    return marker.scale, marker.num_kv_heads, marker.group_size, marker.head_dim


class _Softmax(ABC):
    """Softmax over the visible rows and the sum of their values, in ONNX's own operators."""

    OPERATOR: ClassVar[str]

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._visible = VisibleRows(editor)
        self._query = FoldedQuery(editor)

    def attend(self, marker: TreeAttentionMarker, keys: ir.Value, values: ir.Value) -> ir.Value:
        """keys and values (B, H, S, D), the first M rows of which count -> (B, Hq, N, D)."""
        scores = self._query.scores(marker, self._visible.cut(keys, marker.mask))
        weights = self._editor.op("Exp", [self._editor.op("Sub", [scores, self._largest(scores)])])
        output = self._weighted_sum(weights, self._visible.cut(values, marker.mask))
        return self._query.unfold(marker, output)

    def output_of(self, heads: ir.Value) -> ir.Value:
        """What the operator gives for (B, Hq, N, D)."""
        return heads

    def heads_of(self, marker: TreeAttentionMarker, output: ir.Value) -> ir.Value:
        """(B, Hq, N, D) of what the operator gives."""
        return output

    @abstractmethod
    def _weighted_sum(self, weights: ir.Value, values: ir.Value) -> ir.Value:
        """Exponentials (B, H, R, M) over their sum, times values (B, H, M, D) -> (B, H, R, D)."""

    def _largest(self, value: ir.Value) -> ir.Value:
        return self._editor.op("ReduceMax", [value, self._editor.int64s(-1)], {"keepdims": 1})

    def _wide(self, op_type: str, *inputs: ir.Value) -> ir.Value:
        return self._editor.op(op_type, inputs, dtype=ir.DataType.DOUBLE)

    def _widened(self, value: ir.Value) -> ir.Value:
        return self._editor.op("Cast", [value], {"to": int(ir.DataType.DOUBLE)}, dtype=ir.DataType.DOUBLE)

    def _narrowed(self, value: ir.Value) -> ir.Value:
        return self._editor.op("Cast", [value], {"to": int(ir.DataType.FLOAT)})

    def _total(self, wide: ir.Value) -> ir.Value:
        inputs = [wide, self._editor.int64s(-1)]
        return self._editor.op("ReduceSum", inputs, {"keepdims": 1}, dtype=ir.DataType.DOUBLE)


class _Float64Softmax(_Softmax):
    """fp32 weights, float64 sums."""

    OPERATOR = "ExactAttention"

    def _weighted_sum(self, weights: ir.Value, values: ir.Value) -> ir.Value:
        wide = self._widened(weights)
        product = self._wide("MatMul", wide, self._widened(values))
        return self._narrowed(self._wide("Div", product, self._total(wide)))


class _IntegerSoftmax(_Softmax):
    """Integer weights and values; float64 holds their sums, which are integers, exactly.

    Its operator gives heads side by side, as the next product wants them.
    """

    OPERATOR = "IntegerAttention"

    def output_of(self, heads: ir.Value) -> ir.Value:
        """Heads side by side: (B, N, Hq * D)."""
        return self._editor.op("Reshape", [self._turned(heads), self._editor.int64s(0, 0, -1)])

    def heads_of(self, marker: TreeAttentionMarker, output: ir.Value) -> ir.Value:
        num_heads = marker.num_kv_heads * marker.group_size
        return self._turned(self._editor.op("Reshape", [output, self._editor.int64s(0, 0, num_heads, marker.head_dim)]))

    def _turned(self, value: ir.Value) -> ir.Value:
        return self._editor.op("Transpose", [value], {"perm": [0, 2, 1, 3]})

    def _weighted_sum(self, weights: ir.Value, values: ir.Value) -> ir.Value:
        editor = self._editor
        magnitudes = self._positive(self._largest(editor.op("Abs", [values])))
        scaled = editor.op("Mul", [weights, editor.op("Transpose", [magnitudes], {"perm": [0, 1, 3, 2]})])
        tops = self._positive(self._largest(scaled))
        product = self._wide(
            "MatMul", self._integers(scaled, tops, _WEIGHT_STEPS), self._integers(values, magnitudes, _VALUE_STEPS)
        )
        units = self._wide("Div", self._widened(tops), self._exact_total(weights))
        unit = editor.constant(np.array(1 / (_WEIGHT_STEPS * _VALUE_STEPS)), "unit")
        return self._narrowed(self._wide("Mul", product, self._wide("Mul", units, unit)))

    def _integers(self, numbers: ir.Value, largest: ir.Value, num_steps: int) -> ir.Value:
        """Numbers in steps of their row's largest, as float64."""
        editor = self._editor
        steps = editor.op("Mul", [numbers, editor.op("Div", [editor.scalar(num_steps), largest])])
        zero_point = editor.constant(np.array(0, np.int16), "zero_point")
        rounded = editor.op("QuantizeLinear", [steps, editor.scalar(1), zero_point], dtype=ir.DataType.INT16)
        return self._widened(rounded)

    def _positive(self, numbers: ir.Value) -> ir.Value:
        return self._editor.op("Max", [numbers, self._editor.scalar(_SMALLEST)])

    def _exact_total(self, weights: ir.Value) -> ir.Value:
        """The sum of weights of at most one, each rounded to steps of 2**-22 by adding two: so many add up exactly."""
        raised = self._editor.op("Add", [weights, self._editor.scalar(2)])
        twos = self._wide("Mul", self._widened(self._editor.size_of(weights, 3)), self._widened(self._editor.scalar(2)))
        return self._wide("Sub", self._total(self._widened(raised)), twos)


def scatter_rows(editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value]:
    """Write the new keys and values at [write_pos, write_pos + N) of each sequence; in place where memory is shared."""
    how: dict[str, int | str] = {"axis": 2, "mode": "linear"}
    present_key = editor.op("TensorScatter", [marker.past_key, marker.key, marker.write_pos], how)
    present_value = editor.op("TensorScatter", [marker.past_value, marker.value, marker.write_pos], how)
    return present_key, present_value
