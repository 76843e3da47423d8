"""Pieces that the attention variants share."""

import functools

import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.markers import TreeAttentionMarker

# ONNX Runtime cuts longer sums into blocks whose length hangs on the number of visible rows: 256 components summed one
# way up to 64 rows and another way beyond.
_MAX_CHAIN = 128


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
        """The query, scaled where heads share a KV head: on (N, D) that is cheaper than on the scores (N, M)."""
        editor = self._editor
        if marker.group_size == 1:
            return marker.query
        scaled = editor.op("Mul", [marker.query, editor.scalar(marker.scale)])
        return editor.op("Reshape", [scaled, editor.int64s(0, marker.num_kv_heads, -1, marker.head_dim)])

    def scores(self, marker: TreeAttentionMarker, keys: ir.Value) -> ir.Value:
        """Masked scores (B, H, G * N, M) in fp32."""
        editor = self._editor
        scores = self._products(marker, keys)
        if marker.softcap:
            softcap = editor.scalar(marker.softcap)
            scores = editor.op("Mul", [editor.op("Tanh", [editor.op("Div", [scores, softcap])]), softcap])
        return editor.op("Add", [scores, self._tiled_mask(marker)])

    def _products(self, marker: TreeAttentionMarker, keys: ir.Value) -> ir.Value:
        query = self.fold(marker)
        if marker.head_dim <= _MAX_CHAIN:
            return self._product(marker, query, keys)
        parts = []
        for begin in range(0, marker.head_dim, _MAX_CHAIN):
            bounds = [self._editor.int64s(n) for n in (begin, min(begin + _MAX_CHAIN, marker.head_dim), 3)]
            query_part, keys_part = (self._editor.op("Slice", [value, *bounds]) for value in (query, keys))
            parts.append(self._product(marker, query_part, keys_part))
        return functools.reduce(lambda left, right: self._editor.op("Add", [left, right]), parts)

    def _product(self, marker: TreeAttentionMarker, query: ir.Value, keys: ir.Value) -> ir.Value:
        editor = self._editor
        transposed = editor.op("Transpose", [keys], {"perm": [0, 1, 3, 2]})
        product = editor.op("MatMul", [query, transposed])
        if marker.group_size > 1:
            return product
        # ONNX Runtime folds this scale into the product, which keeps a single row off the kernel that sums otherwise.
        return editor.op("Mul", [product, editor.scalar(marker.scale)])

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
