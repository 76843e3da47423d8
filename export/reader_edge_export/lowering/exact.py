"""Attention whose bits do not depend on the width of the pass or on where a node's ancestors sit.

In fp32 the sum over the visible rows takes another order for one row than for several, and for scattered ancestors
than for adjacent ones. Here the exponentials are fp32 against the row's maximum, which no order changes, and both sums
over rows are float64: their reordering error of 1e-16 vanishes in the final rounding to fp32 (but for a sum that lies
within 1e-15 of a rounding boundary).
"""

from dataclasses import replace
from typing import ClassVar

import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.lowering.kv_rows import FoldedQuery, VisibleRows
from reader_edge_export.markers import TreeAttentionMarker
from reader_edge_export.operators import OPERATOR_DOMAIN, Definition


class ExactAttention:
    """TensorScatter into the cache, then the operator ExactAttention over the visible rows."""

    OPSET: ClassVar[int] = 24

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._softmax = _ExactSoftmax(editor)
        self._defined: TreeAttentionMarker | None = None

    def lower(self, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The marker's three outputs."""
        present_key, present_value = scatter_rows(self._editor, marker)
        if self._is_defined_for(marker):
            inputs = [marker.query, present_key, present_value, marker.mask]
            output = self._editor.op("ExactAttention", inputs, {"scale": marker.scale}, domain=OPERATOR_DOMAIN)
        else:
            output = self._softmax.attend(marker, present_key, present_value)
        return output, present_key, present_value

    def _is_defined_for(self, marker: TreeAttentionMarker) -> bool:
        """One definition serves all layers of a usual model; layers that differ are spelled out."""
        if marker.softcap or marker.head_dim % 8:
            return False
        if self._defined is None:
            definition = Definition("ExactAttention", "query", "keys", "values", "mask")
            query, keys, values, mask = definition.inputs
            output = _ExactSoftmax(definition.editor).attend(replace(marker, query=query, mask=mask), keys, values)
            definition.add_to(self._editor, output, ["scale"])
            self._defined = marker
        return _form(marker) == _form(self._defined)


def _form(marker: TreeAttentionMarker) -> tuple[float, ...]:
    return marker.scale, marker.num_kv_heads, marker.group_size, marker.head_dim


class _ExactSoftmax:
    """Softmax in fp32 with float64 sums, in ONNX's own operators."""

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._visible = VisibleRows(editor)
        self._query = FoldedQuery(editor)

    def attend(self, marker: TreeAttentionMarker, keys: ir.Value, values: ir.Value) -> ir.Value:
        """keys and values (B, H, S, D), the first M rows of which count -> (B, Hq, N, D)."""
        scores = self._query.scores(marker, self._visible.cut(keys, marker.mask))
        output = self._weighted_sum(scores, self._visible.cut(values, marker.mask))
        return self._query.unfold(marker, output)

    def _weighted_sum(self, scores: ir.Value, values: ir.Value) -> ir.Value:
        editor = self._editor
        last = editor.int64s(-1)
        shifted = editor.op("Sub", [scores, editor.op("ReduceMax", [scores, last], {"keepdims": 1})])
        weights = self._cast(editor.op("Exp", [shifted]), ir.DataType.DOUBLE)
        total = editor.op("ReduceSum", [weights, last], {"keepdims": 1}, dtype=ir.DataType.DOUBLE)
        product = editor.op("MatMul", [weights, self._cast(values, ir.DataType.DOUBLE)], dtype=ir.DataType.DOUBLE)
        mean = editor.op("Div", [product, total], dtype=ir.DataType.DOUBLE)
        return self._cast(mean, ir.DataType.FLOAT)

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self._editor.op("Cast", [value], {"to": int(dtype)}, dtype=dtype)


def scatter_rows(editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value]:
    """Write the new keys and values at [write_pos, write_pos + N) of each sequence; in place where memory is shared."""
    how: dict[str, int | str] = {"axis": 2, "mode": "linear"}
    present_key = editor.op("TensorScatter", [marker.past_key, marker.key, marker.write_pos], how)
    present_value = editor.op("TensorScatter", [marker.past_value, marker.value, marker.write_pos], how)
    return present_key, present_value
