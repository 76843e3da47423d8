"""Pieces that the attention variants share."""

import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.markers import TreeAttentionMarker


class VisibleRows:
    """Cuts the KV buffers to the rows the mask speaks of: attention over all S rows would cost O(S)."""

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._num_visible: dict[ir.Value, ir.Value] = {}

    def cut(self, present: ir.Value, mask: ir.Value) -> ir.Value:
        """(B, H, S, D) -> (B, H, M, D)."""
        editor = self._editor
        if mask not in self._num_visible:
            self._num_visible[mask] = editor.size_of(mask, 3)
        return editor.op("Slice", [present, editor.int64s(0), self._num_visible[mask], editor.int64s(2)])


class FoldedQuery:
    """Folds the query heads that share a KV head into rows: (B, Hq, N, D) -> (B, H, G * N, D), G = Hq / H."""

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._tiled_masks: dict[tuple[ir.Value, int], ir.Value] = {}

    def fold(self, marker: TreeAttentionMarker) -> ir.Value:
        """The query, scaled: on (N, D) that is cheaper than on the scores (N, M)."""
        editor = self._editor
        scaled = editor.op("Mul", [marker.query, editor.scalar(marker.scale)])
        if marker.group_size == 1:
            return scaled
        return editor.op("Reshape", [scaled, editor.int64s(0, marker.num_kv_heads, -1, marker.head_dim)])

    def scores(self, marker: TreeAttentionMarker, keys: ir.Value) -> ir.Value:
        """Masked scores (B, H, G * N, M) in fp32."""
        editor = self._editor
        transposed = editor.op("Transpose", [keys], {"perm": [0, 1, 3, 2]})
        scores = editor.op("MatMul", [self.fold(marker), transposed])
        if marker.softcap:
            softcap = editor.scalar(marker.softcap)
            scores = editor.op("Mul", [editor.op("Tanh", [editor.op("Div", [scores, softcap])]), softcap])
        return editor.op("Add", [scores, self._tiled_mask(marker)])

    def unfold(self, marker: TreeAttentionMarker, output: ir.Value) -> ir.Value:
        """(B, H, G * N, D) -> (B, Hq, N, D)."""
        editor = self._editor
        num_heads = marker.num_kv_heads * marker.group_size
        if marker.group_size == 1:
            return output
        return editor.op("Reshape", [output, editor.int64s(0, num_heads, -1, marker.head_dim)])

    def _tiled_mask(self, marker: TreeAttentionMarker) -> ir.Value:
        if marker.group_size == 1:
            return marker.mask
        key = (marker.mask, marker.group_size)
        if key not in self._tiled_masks:
            repeats = self._editor.int64s(1, 1, marker.group_size, 1)
            self._tiled_masks[key] = self._editor.op("Tile", [marker.mask, repeats])
        return self._tiled_masks[key]
