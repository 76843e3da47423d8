"""From markers of layers to operators that a runtime has: one variant per file, the same graph contract for all.

exact: bit for bit the same for a tree node, a chain and a single token; ONNX Runtime on CPUs, and in half precision on
GPUs.
fast: ONNX's own Attention operator; any ONNX Runtime provider.
portable: operators of opset 18 only, in fp32 throughout, and new rows of the KV cache as results; engines that know no
newer operators, or cannot update a cache.
portable-exact: the same, with exact's sums in float64.
"""

from reader_edge_export.lowering.double import lower_double
from reader_edge_export.lowering.exact import ExactAttention
from reader_edge_export.lowering.fast import lower_fast
from reader_edge_export.lowering.int8_cache import Int8CacheAttention
from reader_edge_export.lowering.portable import PortableAttention
from reader_edge_export.lowering.recurrence import lower_recurrences
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.trace.markers import MARKER_DOMAIN, attention_markers
from reader_edge_runtime.package.manifest import ROW_ATTENTIONS

_IR_VERSIONS = {18: 8, 24: 11}  # ONNX Runtime refuses the newer IR versions that onnx would write


def lower_attention(
    editor: GraphEditor, attention: str, is_quantized: bool, kv_dtype: str = "float32", is_half: bool = False
) -> None:
    """Replace every marker of a layer.

    is_quantized: the weights are, so that attention may round as they do. kv_dtype: the KV cache's type in exact
    attention, "float32", "float16" or "int8". is_half: the whole graph will be in half precision, its cache too.
    """
    if is_half:
        exact = lower_double
    elif kv_dtype == "int8":
        exact = Int8CacheAttention(editor).lower
    else:
        exact = ExactAttention(editor, is_quantized, kv_dtype == "float16").lower
    lower = {
        "exact": exact,
        "fast": lower_fast,
        "portable": PortableAttention(is_exact=False).lower,
        "portable-exact": PortableAttention(is_exact=True).lower,
    }[attention]
    for marker in attention_markers(editor.graph):
        outputs = lower(editor, marker)
        editor.replace(marker.node, outputs[: len(marker.node.outputs)])
    lower_recurrences(editor)
    opset = 18 if attention in ROW_ATTENTIONS else 24
    editor.graph.opset_imports[""] = opset
    editor.graph.opset_imports.pop(MARKER_DOMAIN, None)
    editor.model.ir_version = _IR_VERSIONS[opset]
