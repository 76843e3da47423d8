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

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from reader_edge_export.lowering.cache_rows import half_rows
from reader_edge_export.lowering.exact_sums import exponentials, float64_mean, integer_mean, integers, magnitudes_of
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
from reader_edge_export.operators.definitions import OPERATOR_DOMAIN, Definition
from reader_edge_export.trace.markers import TreeAttentionMarker


class AttentionOperator(ABC):
    """name (query, *constants, keys, values, mask) -> heads (B, Hq, N, D), or merged ones (B, N, Hq * D).

    With sinks (Hq,) behind the mask it is nameSinks. One definition serves all layers of a usual model; heads of other
    sizes have their own.
    """

    def __init__(self, editor: GraphEditor, name: str, merges_heads: bool) -> None:
        self._editor = editor
        self._name = name
        self._merges_heads = merges_heads
        self._overloads: dict[tuple[float, ...], str] = {}

    def attend(
        self, editor: GraphEditor, marker: TreeAttentionMarker, present: Sequence[ir.Value], *constants: ir.Value
    ) -> ir.Value:
        """Softmax over keys and values (B, H, S, ...), the first M rows of which count -> (B, Hq, N, D)."""
        if marker.softcap or marker.head_dim % 8:
            return self._spell_out(editor, marker, present, *constants)
        sinks = [] if marker.sinks is None else [marker.sinks]
        inputs = [marker.query, *constants, *present, marker.mask, *sinks]
        name, overload = self._name_for(marker), self._overload(marker, len(constants))
        output = editor.op(name, inputs, {"scale": marker.scale}, domain=OPERATOR_DOMAIN, overload=overload)
        if self._merges_heads:
            sizes = editor.int64s(0, 0, marker.num_heads, marker.head_dim)
            output = editor.transpose(editor.op("Reshape", [output, sizes]), 0, 2, 1, 3)
        return output

    @abstractmethod
    def _spell_out(
        self, editor: GraphEditor, marker: TreeAttentionMarker, present: Sequence[ir.Value], *constants: ir.Value
    ) -> ir.Value:
        """The same in plain operators."""

    def _overload(self, marker: TreeAttentionMarker, num_constants: int) -> str:
        """The name of the definition for a layer, made for the first one of its sizes."""
        sizes = marker.scale, marker.num_heads, marker.num_kv_heads, marker.head_dim, marker.sinks is not None
        if sizes not in self._overloads:
            self._overloads[sizes] = f"form{len(self._overloads)}" if self._overloads else ""
            self._define(marker, num_constants, self._overloads[sizes])
        return self._overloads[sizes]

    def _name_for(self, marker: TreeAttentionMarker) -> str:
        return self._name if marker.sinks is None else f"{self._name}Sinks"

    def _define(self, marker: TreeAttentionMarker, num_constants: int, overload: str) -> None:
        names = [f"constant_{index}" for index in range(num_constants)]
        names += ["keys", "values", "mask"] if marker.sinks is None else ["keys", "values", "mask", "sinks"]
        definition = Definition(self._name_for(marker), "query", *names, overload=overload)
        editor, (query, *others) = definition.editor, definition.inputs
        constants, (keys, values, mask, *sinks) = others[:num_constants], others[num_constants:]
        for mine, theirs in zip((keys, values), (marker.past_key, marker.past_value), strict=True):
            mine.dtype = theirs.dtype or ir.DataType.FLOAT
        inner = replace(marker, query=query, mask=mask, sinks=sinks[0] if sinks else None)
        output = self._spell_out(editor, inner, (keys, values), *constants)
        if self._merges_heads:
            output = editor.op("Reshape", [editor.transpose(output, 0, 2, 1, 3), editor.int64s(0, 0, -1)])
        definition.add_to(self._editor, output, ["scale"])


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
