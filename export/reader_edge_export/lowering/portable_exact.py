"""Exact attention of plain operators up to opset 18, for engines that cannot update the KV cache in place.

The visible rows are cut out of the past before the new ones are put among them, and the new rows are results of the
graph: who runs it writes them to the cache, and copies no more of it than that.
"""

import onnx_ir as ir

from reader_edge_export.lowering.exact_sums import exponentials, float64_mean
from reader_edge_export.lowering.kv_rows import masked_scores, unfold_heads, visible_rows, with_no_value, with_sinks
from reader_edge_export.lowering.portable import row_indices
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.trace.markers import TreeAttentionMarker


class PortableExactAttention:
    """Slice of the past, ScatterND into that, then attention whose sums over the rows are in float64."""

    def __init__(self) -> None:
        self._visible: dict[ir.Value, ir.Value] = {}  # by a layer's new rows, those that others read of its cache

    def lower(self, editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The marker's three outputs, the last two being the new rows (B, H, N, D)."""
        if marker.key is None or marker.value is None or marker.write_pos is None:
            rows = marker.past_key, marker.past_value
        else:
            rows = self._written(editor, marker, marker.key, marker.value, marker.write_pos)
        keys, values = (self._visible[each] for each in rows)
        weights = exponentials(editor, with_sinks(editor, marker, masked_scores(editor, marker, keys)))
        mean = float64_mean(editor, weights, with_no_value(editor, marker, values))
        return unfold_heads(editor, marker, mean), *rows

    def _written(
        self, editor: GraphEditor, marker: TreeAttentionMarker, key: ir.Value, value: ir.Value, write_pos: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """The new rows as results of their own, put among the visible ones of the past."""
        indices = row_indices(editor, marker, write_pos)
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
        if value.dtype != ir.DataType.INT64:
            continue
        readers = list(value.uses())
        value.dtype = ir.DataType.INT32
        wide = editor.cast(value, ir.DataType.INT64)
        for node, index in readers:
            node.replace_input_with(index, wide)
        editor.insert_before(editor.graph[0])
