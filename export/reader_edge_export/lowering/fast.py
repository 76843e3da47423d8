"""Attention by ONNX's own operator, which providers have tuned kernels for."""

import onnx_ir as ir

from reader_edge_export.lowering.kv_rows import scatter_rows, visible_rows
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.trace.markers import TreeAttentionMarker


def lower_fast(editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
    """TensorScatter into the cache, then Attention of opset 24 over the visible rows: the marker's three outputs."""
    present = scatter_rows(editor, marker)
    attributes = {"scale": marker.scale} | ({"softcap": marker.softcap} if marker.softcap else {})
    inputs = [marker.query, *visible_rows(editor, marker.mask, *present), marker.mask]
    return editor.op("Attention", inputs, attributes), *present
