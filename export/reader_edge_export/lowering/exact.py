"""Attention whose bits do not depend on the width of the pass or on where a node's ancestors sit.

In fp32 the sum over the visible rows takes another order for one row than for several, and for scattered ancestors
than for adjacent ones. Here the exponentials are fp32 against the row's maximum, and the sums over rows are of two
kinds:

- float64;
- integers, for models whose weights are quantised: values in 2047 steps of their row's largest, softmax weights in
  16383 steps of their query's largest (the values' steps counted in), which add up exactly. Their rounding is a tenth
  of what the int8 rows of the next product lose; native kernels sum 16-bit integers four times as fast as float64.
"""

from collections.abc import Sequence

import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.lowering.attention_operator import AttentionOperator
from reader_edge_export.lowering.exact_sums import exponentials, float64_mean, integer_mean, integers, magnitudes_of
from reader_edge_export.lowering.kv_rows import masked_scores, scatter_rows, unfold_heads, visible_rows
from reader_edge_export.markers import TreeAttentionMarker

_VALUE_STEPS = 2047
_WEIGHT_STEPS = 16383


class ExactAttention(AttentionOperator):
    """TensorScatter into the cache, then an operator over the visible rows: ExactAttention or IntegerAttention.

    ExactAttention gives heads (B, Hq, N, D); IntegerAttention gives them side by side, as the next product wants them.
    """

    def __init__(self, editor: GraphEditor, is_quantized: bool) -> None:
        super().__init__(editor, "IntegerAttention" if is_quantized else "ExactAttention", is_quantized)
        self._is_quantized = is_quantized

    def lower(self, editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The marker's three outputs."""
        present = scatter_rows(editor, marker)
        return self.attend(editor, marker, present), *present

    def _spell_out(
        self, editor: GraphEditor, marker: TreeAttentionMarker, present: Sequence[ir.Value], *constants: ir.Value
    ) -> ir.Value:
        keys, values = visible_rows(editor, marker.mask, *present)
        weights = exponentials(editor, masked_scores(editor, marker, keys))
        mean = _integer_mean if self._is_quantized else float64_mean
        return unfold_heads(editor, marker, mean(editor, weights, values))


def _integer_mean(editor: GraphEditor, weights: ir.Value, values: ir.Value) -> ir.Value:
    magnitudes = magnitudes_of(editor, values)
    steps = integers(editor, values, magnitudes, _VALUE_STEPS)
    return integer_mean(editor, weights, _WEIGHT_STEPS, steps, magnitudes, _VALUE_STEPS)
