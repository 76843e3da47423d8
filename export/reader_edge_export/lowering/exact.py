"""Attention whose bits do not depend on the width of the pass or on where a node's ancestors sit.

In fp32 the sum over the visible rows takes another order for one row than for several, and for scattered ancestors
than for adjacent ones. Here the exponentials are fp32 against the row's maximum, and the sums over rows are of two
kinds:

- float64;
- integers, for models whose weights are quantised: values in 2047 steps of their row's largest, softmax weights in
  16383 steps of their query's largest (the values' steps counted in), which add up exactly. Their rounding is a tenth
  of what the int8 rows of the next product lose; native kernels sum 16-bit integers four times as fast as float64.

The KV cache is fp32 or fp16: of an fp16 one keys and values are rounded when they are written, and read exactly.
"""

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from reader_edge_export.lowering.attention_operator import AttentionOperator
from reader_edge_export.lowering.exact_sums import exponentials, float64_mean, integer_mean, integers, magnitudes_of
from reader_edge_export.lowering.half_rows import half_rows
from reader_edge_export.lowering.kv_rows import (
    masked_scores,
    scatter_rows,
    set_cache_type,
    unfold_heads,
    visible_rows,
    with_no_value,
    with_sinks,
)
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.shared_constants import VALUE_STEPS, WEIGHT_STEPS
from reader_edge_export.trace.markers import TreeAttentionMarker


class ExactAttention(AttentionOperator):
    """TensorScatter into the cache, then an operator over the visible rows: ExactAttention or IntegerAttention.

    ExactAttention gives heads (B, Hq, N, D); IntegerAttention gives them side by side, as the next product wants them.
    Over a cache in fp16 they are ExactAttention16 and IntegerAttention16, and HalfRows comes before TensorScatter.
    """

    def __init__(self, editor: GraphEditor, is_quantized: bool, has_half_cache: bool) -> None:
        name = ("IntegerAttention" if is_quantized else "ExactAttention") + ("16" if has_half_cache else "")
        super().__init__(editor, name, is_quantized)
        self._is_quantized = is_quantized
        self._has_half_cache = has_half_cache

    def lower(self, editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The marker's three outputs."""
        if self._has_half_cache and marker.key is not None and marker.value is not None:
            key, value = half_rows(editor, marker.key, marker.value)
            set_cache_type(marker, ir.DataType.FLOAT16, marker.head_dim)
            marker = replace(marker, key=key, value=value)
        present = scatter_rows(editor, marker)
        return self.attend(editor, marker, present), *present

    def _spell_out(
        self, editor: GraphEditor, marker: TreeAttentionMarker, present: Sequence[ir.Value], *constants: ir.Value
    ) -> ir.Value:
        keys, values = visible_rows(editor, marker.mask, *present)
        if self._has_half_cache:
            keys, values = (editor.cast(rows, ir.DataType.FLOAT) for rows in (keys, values))
        values = with_no_value(editor, marker, values)
        weights = exponentials(editor, with_sinks(editor, marker, masked_scores(editor, marker, keys)))
        mean = _integer_mean if self._is_quantized else float64_mean
        return unfold_heads(editor, marker, mean(editor, weights, values))


def _integer_mean(editor: GraphEditor, weights: ir.Value, values: ir.Value) -> ir.Value:
    magnitudes = magnitudes_of(editor, values)
    steps = integers(editor, values, magnitudes, VALUE_STEPS)
    return integer_mean(editor, weights, WEIGHT_STEPS, steps, magnitudes, VALUE_STEPS)
