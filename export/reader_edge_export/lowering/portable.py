"""Attention of plain operators up to opset 18, for engines that cannot update the KV cache in place.

The visible rows are cut out of the past before the new ones are put among them, and the new rows are results of the
graph: who runs it writes them to the cache, and copies no more of it than that.
"""

import numpy as np
import onnx_ir as ir

from reader_edge_export.lowering.exact_sums import exponentials, float64_mean
from reader_edge_export.lowering.kv_rows import masked_scores, unfold_heads, visible_rows, with_no_value, with_sinks
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.trace.markers import TreeAttentionMarker

_INT64 = ir.DataType.INT64


class PortableAttention:
    """Slice of the past, ScatterND into that, then attention.

    is_exact: its sums over the rows are in float64, which no order of theirs changes; else all is in fp32, for engines
    that have no more.
    """

    def __init__(self, *, is_exact: bool) -> None:
        self._is_exact = is_exact
        self._visible: dict[ir.Value, ir.Value] = {}  # by a layer's new rows, those that others read of its cache

    def lower(self, editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The marker's three outputs, the last two being the new rows (B, H, N, D)."""
        if marker.key is None or marker.value is None or marker.write_pos is None:
            rows = marker.past_key, marker.past_value
        else:
            rows = self._written(editor, marker, marker.key, marker.value, marker.write_pos)
        keys, values = (self._visible[each] for each in rows)
        scores = with_sinks(editor, marker, masked_scores(editor, marker, keys))
        values = with_no_value(editor, marker, values)
        if self._is_exact:
            mean = float64_mean(editor, exponentials(editor, scores), values)
        else:
            mean = editor.op("MatMul", [editor.op("Softmax", [scores], {"axis": -1}), values])
        return unfold_heads(editor, marker, mean), *rows

    def _written(
        self, editor: GraphEditor, marker: TreeAttentionMarker, key: ir.Value, value: ir.Value, write_pos: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """The new rows as results of their own, put among the visible ones of the past."""
        indices = _row_indices(editor, marker, write_pos)
        past = visible_rows(editor, marker.mask, marker.past_key, marker.past_value)
        new_key, new_value = (editor.op("Identity", [new]) for new in (key, value))
        for new, old in zip((new_key, new_value), past, strict=True):
            self._visible[new] = editor.op("ScatterND", [old, indices, new])
        for output in marker.node.outputs[1:]:
            output.shape = ir.Shape(["B", marker.num_kv_heads, "N", marker.head_dim])
            output.name = str(output.name).replace("present_", "new_")
        return new_key, new_value


def narrow_inputs(editor: GraphEditor) -> None:
    """Have inputs of int64 come as int32, which every engine takes and computes right."""
    for value in editor.graph.inputs:
        if value.dtype != _INT64:
            continue
        readers = list(value.uses())
        value.dtype = ir.DataType.INT32
        wide = editor.cast(value, _INT64)
        for node, index in readers:
            node.replace_input_with(index, wide)
        editor.insert_before(editor.graph[0])


def _row_indices(editor: GraphEditor, marker: TreeAttentionMarker, write_pos: ir.Value) -> ir.Value:
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
