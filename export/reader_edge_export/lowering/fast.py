"""Attention by ONNX's own operator, which providers have tuned kernels for."""

from typing import ClassVar

import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.lowering.exact import scatter_rows
from reader_edge_export.lowering.kv_rows import VisibleRows
from reader_edge_export.markers import TreeAttentionMarker


class FastAttention:
    """TensorScatter into the cache, then Attention of opset 24 over the visible rows."""

    OPSET: ClassVar[int] = 24

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._visible = VisibleRows(editor)

    def lower(self, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The marker's three outputs."""
        present_key, present_value = scatter_rows(self._editor, marker)
        keys = self._visible.cut(present_key, marker.mask)
        values = self._visible.cut(present_value, marker.mask)
        attributes: dict[str, float] = {"scale": marker.scale}
        if marker.softcap:
            attributes["softcap"] = marker.softcap
        output = self._editor.op("Attention", [marker.query, keys, values, marker.mask], attributes)
        return output, present_key, present_value
