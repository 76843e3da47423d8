"""Attention over the visible rows of the KV cache as one operator, which the package defines by plain ones."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import OPERATOR_DOMAIN, Definition
from reader_edge_export.trace.markers import TreeAttentionMarker


class AttentionOperator(ABC):
    """name (query, *constants, keys, values, mask) -> heads (B, Hq, N, D), or merged ones (B, N, Hq * D).

    With sinks (Hq,) behind the mask it is nameSinks. One definition serves all layers of a usual model; heads of other
    sizes have their own.
    """

    def __init__(self, editor: GraphEditor, name: str, merges_heads: bool) -> None:
        self._editor = editor
        self._name = name
        self._merges_heads = merges_heads
        self._overloads: dict[tuple[float, ...], str] = {}

    def attend(
        self, editor: GraphEditor, marker: TreeAttentionMarker, present: Sequence[ir.Value], *constants: ir.Value
    ) -> ir.Value:
        """Softmax over keys and values (B, H, S, ...), the first M rows of which count -> (B, Hq, N, D)."""
        if marker.softcap or marker.head_dim % 8:
            return self._spell_out(editor, marker, present, *constants)
        sinks = [] if marker.sinks is None else [marker.sinks]
        inputs = [marker.query, *constants, *present, marker.mask, *sinks]
        name, overload = self._name_for(marker), self._overload(marker, len(constants))
        output = editor.op(name, inputs, {"scale": marker.scale}, domain=OPERATOR_DOMAIN, overload=overload)
        if self._merges_heads:
            sizes = editor.int64s(0, 0, marker.num_heads, marker.head_dim)
            output = editor.transpose(editor.op("Reshape", [output, sizes]), 0, 2, 1, 3)
        return output

    @abstractmethod
    def _spell_out(
        self, editor: GraphEditor, marker: TreeAttentionMarker, present: Sequence[ir.Value], *constants: ir.Value
    ) -> ir.Value:
        """The same in plain operators."""

    def _overload(self, marker: TreeAttentionMarker, num_constants: int) -> str:
        """The name of the definition for a layer, made for the first one of its form."""
        form = marker.scale, marker.num_heads, marker.num_kv_heads, marker.head_dim, marker.sinks is not None
        if form not in self._overloads:
            self._overloads[form] = f"form{len(self._overloads)}" if self._overloads else ""
            self._define(marker, num_constants, self._overloads[form])
        return self._overloads[form]

    def _name_for(self, marker: TreeAttentionMarker) -> str:
        return self._name if marker.sinks is None else f"{self._name}Sinks"

    def _define(self, marker: TreeAttentionMarker, num_constants: int, overload: str) -> None:
        names = [f"constant_{index}" for index in range(num_constants)]
        names += ["keys", "values", "mask"] if marker.sinks is None else ["keys", "values", "mask", "sinks"]
        definition = Definition(self._name_for(marker), "query", *names, overload=overload)
        editor, (query, *others) = definition.editor, definition.inputs
        constants, (keys, values, mask, *sinks) = others[:num_constants], others[num_constants:]
        for mine, theirs in zip((keys, values), (marker.past_key, marker.past_value), strict=True):
            mine.dtype = theirs.dtype or ir.DataType.FLOAT
        inner = replace(marker, query=query, mask=mask, sinks=sinks[0] if sinks else None)
        output = self._spell_out(editor, inner, (keys, values), *constants)
        if self._merges_heads:
            output = editor.op("Reshape", [editor.transpose(output, 0, 2, 1, 3), editor.int64s(0, 0, -1)])
        definition.add_to(self._editor, output, ["scale"])
