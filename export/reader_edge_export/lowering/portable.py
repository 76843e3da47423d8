"""Attention of plain operators up to opset 18, for compilers that know neither TensorScatter nor Attention."""

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.lowering.kv_rows import FoldedQuery, VisibleRows
from reader_edge_export.markers import TreeAttentionMarker

_INT64 = ir.DataType.INT64


class PortableAttention:
    """ScatterND into the cache, then MatMul, Softmax, MatMul."""

    OPSET: ClassVar[int] = 18

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._visible = VisibleRows(editor)
        self._query = FoldedQuery(editor)
        self._indices: ir.Value | None = None

    def lower(self, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The marker's three outputs."""
        editor = self._editor
        if self._indices is None:
            self._indices = self._row_indices(marker)
        present_key = editor.op("ScatterND", [marker.past_key, self._indices, marker.key])
        present_value = editor.op("ScatterND", [marker.past_value, self._indices, marker.value])
        scores = self._query.scores(marker, self._visible.cut(present_key, marker.mask))
        weights = editor.op("Softmax", [scores], {"axis": -1})
        output = editor.op("MatMul", [weights, self._visible.cut(present_value, marker.mask)])
        return self._query.unfold(marker, output), present_key, present_value

    def _row_indices(self, marker: TreeAttentionMarker) -> ir.Value:
        """(B, H, N, 3): sequence, head and row of every new key; the same for all layers."""
        editor = self._editor
        num_sequences, num_nodes = editor.size_of(marker.mask, 0), editor.size_of(marker.mask, 2)
        sizes = [num_sequences, editor.int64s(marker.num_kv_heads), num_nodes, editor.int64s(1)]
        shape = editor.op("Concat", sizes, {"axis": 0}, dtype=_INT64)
        sequence = self._unsqueeze(self._range(num_sequences), 1, 2, 3)
        head = editor.constant(np.arange(marker.num_kv_heads).reshape(1, -1, 1, 1), "heads")
        first = self._unsqueeze(marker.write_pos, 1, 2, 3)
        row = editor.op("Add", [first, self._unsqueeze(self._range(num_nodes), 0, 1, 3)], dtype=_INT64)
        parts = [editor.op("Expand", [part, shape], dtype=_INT64) for part in (sequence, head, row)]
        return editor.op("Concat", parts, {"axis": 3}, dtype=_INT64)

    def _range(self, size: ir.Value) -> ir.Value:
        editor = self._editor
        limit = editor.op("Squeeze", [size, editor.int64s(0)], dtype=_INT64)
        start, step = (editor.constant(np.array(number, np.int64), "range") for number in (0, 1))
        return editor.op("Range", [start, limit, step], dtype=_INT64)

    def _unsqueeze(self, value: ir.Value, *axes: int) -> ir.Value:
        return self._editor.op("Unsqueeze", [value, self._editor.int64s(*axes)], dtype=_INT64)
