"""Attention of plain operators up to opset 18, for compilers that know neither TensorScatter nor Attention."""

import numpy as np
import onnx_ir as ir

from reader_edge_export.lowering.kv_rows import masked_scores, unfold_heads, visible_rows
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.trace.markers import TreeAttentionMarker

_INT64 = ir.DataType.INT64


def lower_portable(editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
    """ScatterND into the cache, then MatMul, Softmax, MatMul: the marker's three outputs."""
    present_key, present_value = marker.past_key, marker.past_value
    if marker.write_pos is not None:
        indices = row_indices(editor, marker, marker.write_pos)
        present_key = editor.op("ScatterND", [present_key, indices, marker.key])
        present_value = editor.op("ScatterND", [present_value, indices, marker.value])
    keys, values = visible_rows(editor, marker.mask, present_key, present_value)
    weights = editor.op("Softmax", [masked_scores(editor, marker, keys)], {"axis": -1})
    return unfold_heads(editor, marker, editor.op("MatMul", [weights, values])), present_key, present_value


def row_indices(editor: GraphEditor, marker: TreeAttentionMarker, write_pos: ir.Value) -> ir.Value:
    """(B, H, N, 3): sequence, head and row of every new key; the same for all layers."""
    num_sequences, num_nodes = (editor.size_of(editor.input("input_ids"), axis) for axis in (0, 1))
    sizes = [num_sequences, editor.int64s(marker.num_kv_heads), num_nodes, editor.int64s(1)]
    shape = editor.op("Concat", sizes, {"axis": 0}, dtype=_INT64)
    sequence = _unsqueeze(editor, _range(editor, num_sequences), 1, 2, 3)
    head = editor.constant(np.arange(marker.num_kv_heads).reshape(1, -1, 1, 1), "heads")
    first = _unsqueeze(editor, write_pos, 1, 2, 3)
    row = editor.op("Add", [first, _unsqueeze(editor, _range(editor, num_nodes), 0, 1, 3)], dtype=_INT64)
    parts = [editor.op("Expand", [part, shape], dtype=_INT64) for part in (sequence, head, row)]
    return editor.op("Concat", parts, {"axis": 3}, dtype=_INT64)


def _range(editor: GraphEditor, size: ir.Value) -> ir.Value:
    limit = editor.op("Squeeze", [size, editor.int64s(0)], dtype=_INT64)
    start, step = (editor.constant(np.array(number, np.int64), "range") for number in (0, 1))
    return editor.op("Range", [start, limit, step], dtype=_INT64)


def _unsqueeze(editor: GraphEditor, value: ir.Value, *axes: int) -> ir.Value:
    return editor.op("Unsqueeze", [value, editor.int64s(*axes)], dtype=_INT64)
