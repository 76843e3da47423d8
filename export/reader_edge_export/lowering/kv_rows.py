"""Graph pieces that the attention variants share: rows written to the KV cache and read from it, scores over them."""

import functools

import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.shared_constants import MAX_CHAIN
from reader_edge_export.trace.markers import TreeAttentionMarker


def set_cache_type(marker: TreeAttentionMarker, dtype: ir.DataType, row_size: int) -> None:
    """Give the marker's past and present the type of the cache and the size of its rows."""
    rows = ir.Shape(["B", marker.num_kv_heads, "S", row_size])
    for value in (marker.past_key, marker.past_value, *marker.node.outputs[1:]):
        value.dtype, value.shape = dtype, rows


def scatter_rows(editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value]:
    """Write the new keys and values at [write_pos, write_pos + N) of each sequence; in place where memory is shared.

    Where another layer has written them, that is what it left.
    """
    if marker.key is None or marker.value is None:
        return marker.past_key, marker.past_value
    present_key = _scattered(editor, marker, marker.past_key, marker.key)
    if marker.is_latent:
        return present_key, present_key
    return present_key, _scattered(editor, marker, marker.past_value, marker.value)


def visible_rows(editor: GraphEditor, mask: ir.Value, *buffers: ir.Value) -> list[ir.Value]:
    """(B, H, S, D) -> (B, H, M, D), the rows the mask speaks of: attention over all S rows would cost O(S)."""
    bounds = [editor.int64s(0), editor.size_of(mask, 3), editor.int64s(2)]
    return [editor.op("Slice", [buffer, *bounds], dtype=buffer.dtype or ir.DataType.FLOAT) for buffer in buffers]


def masked_scores(editor: GraphEditor, marker: TreeAttentionMarker, keys: ir.Value) -> ir.Value:
    """Scores (B, H, G * N, M) in fp32: the G query heads that share a KV head are folded into rows."""
    return masked(editor, marker, _products(editor, marker, keys))


def masked(editor: GraphEditor, marker: TreeAttentionMarker, scores: ir.Value) -> ir.Value:
    """Scores (B, H, G * N, M), capped where the model does it, plus the mask."""
    if marker.softcap:
        softcap = editor.scalar(marker.softcap)
        scores = editor.op("Mul", [editor.op("Tanh", [editor.op("Div", [scores, softcap])]), softcap])
    mask = marker.mask
    if marker.group_size > 1:
        mask = editor.op("Tile", [mask, editor.int64s(1, 1, marker.group_size, 1)])
    return editor.op("Add", [scores, mask])


def with_sinks(editor: GraphEditor, marker: TreeAttentionMarker, scores: ir.Value) -> ir.Value:
    """Scores (B, H, G * N, M), and behind them the sinks of their heads: (B, H, G * N, M + 1); as they are without."""
    if marker.sinks is None:
        return scores
    num_kv_heads, group = marker.num_kv_heads, marker.group_size
    first = editor.op("Slice", [scores, editor.int64s(0), editor.int64s(1), editor.int64s(3)])
    by_head = editor.op("Reshape", [first, editor.int64s(0, num_kv_heads, group, -1)])
    noughts = editor.op("Clip", [by_head, editor.scalar(0), editor.scalar(0)])
    sinks = editor.op("Reshape", [marker.sinks, editor.int64s(1, num_kv_heads, group, 1)])
    column = editor.op("Reshape", [editor.op("Add", [noughts, sinks]), editor.int64s(0, num_kv_heads, -1, 1)])
    return editor.op("Concat", [scores, column], {"axis": 3})


def with_no_value(editor: GraphEditor, marker: TreeAttentionMarker, rows: ir.Value) -> ir.Value:
    """Rows (B, H, M, D), and behind them one of noughts that sinks go with; as they are without."""
    if marker.sinks is None:
        return rows
    return editor.op("Pad", [rows, editor.int64s(0, 0, 0, 0, 0, 0, 1, 0)], dtype=rows.dtype or ir.DataType.FLOAT)


def fold_heads(editor: GraphEditor, marker: TreeAttentionMarker, query: ir.Value) -> ir.Value:
    """(B, Hq, N, D) -> (B, H, G * N, D)."""
    if marker.group_size == 1:
        return query
    return editor.op("Reshape", [query, editor.int64s(0, marker.num_kv_heads, -1, marker.head_dim)])


def unfold_heads(editor: GraphEditor, marker: TreeAttentionMarker, output: ir.Value) -> ir.Value:
    """(B, H, G * N, D) -> (B, Hq, N, D)."""
    if marker.group_size == 1:
        return output
    return editor.op("Reshape", [output, editor.int64s(0, marker.num_heads, -1, marker.head_dim)])


def _scattered(editor: GraphEditor, marker: TreeAttentionMarker, past: ir.Value, new: ir.Value) -> ir.Value:
    how: dict[str, int | str] = {"axis": 2, "mode": "linear"}
    return editor.op("TensorScatter", [past, new, marker.write_pos], how, dtype=past.dtype or ir.DataType.FLOAT)


def _products(editor: GraphEditor, marker: TreeAttentionMarker, keys: ir.Value) -> ir.Value:
    query = marker.query
    if marker.group_size > 1:  # scaled before it is folded: on (N, D) that is cheaper than on the scores (N, M)
        query = fold_heads(editor, marker, editor.op("Mul", [query, editor.scalar(marker.scale)]))
    if marker.head_dim <= MAX_CHAIN:
        return _product(editor, marker, query, keys)
    parts = []
    for begin in range(0, marker.head_dim, MAX_CHAIN):
        bounds = [editor.int64s(n) for n in (begin, min(begin + MAX_CHAIN, marker.head_dim), 3)]
        query_part, keys_part = (editor.op("Slice", [value, *bounds]) for value in (query, keys))
        parts.append(_product(editor, marker, query_part, keys_part))
    return functools.reduce(lambda left, right: editor.op("Add", [left, right]), parts)


def _product(editor: GraphEditor, marker: TreeAttentionMarker, query: ir.Value, keys: ir.Value) -> ir.Value:
    product = editor.op("MatMul", [query, editor.transpose(keys, 0, 1, 3, 2)])
    if marker.group_size > 1:
        return product
    # ONNX Runtime folds this scale into the product, which keeps a single row off the kernel that sums otherwise.
    return editor.op("Mul", [product, editor.scalar(marker.scale)])
