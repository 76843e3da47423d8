"""From attention markers to operators that a runtime has: one variant per file, the same graph contract for all.

exact: bit for bit the same for a tree node, a chain and a single token; ONNX Runtime on CPUs.
fast: ONNX's own Attention operator; any ONNX Runtime provider.
portable: operators of opset 18 only; compilers that know no newer ones.
"""

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.lowering.exact import ExactAttention
from reader_edge_export.lowering.fast import FastAttention
from reader_edge_export.lowering.portable import PortableAttention
from reader_edge_export.markers import MARKER_DOMAIN, attention_markers

_VARIANTS: dict[str, type[FastAttention | PortableAttention]] = {"fast": FastAttention, "portable": PortableAttention}
_IR_VERSIONS = {18: 8, 24: 11}  # ONNX Runtime refuses the newer IR versions that onnx would write


def lower_attention(editor: GraphEditor, attention: str, is_quantized: bool) -> None:
    """Replace every attention marker by the variant `attention`, in place.

    is_quantized: the model's weights are, so that attention may round as they do.
    """
    variant = ExactAttention(editor, is_quantized) if attention == "exact" else _VARIANTS[attention](editor)
    for marker in attention_markers(editor.graph):
        editor.replace(marker.node, variant.lower(marker))
    editor.graph.opset_imports[""] = variant.OPSET
    editor.graph.opset_imports.pop(MARKER_DOMAIN, None)
    editor.model.ir_version = _IR_VERSIONS[variant.OPSET]
