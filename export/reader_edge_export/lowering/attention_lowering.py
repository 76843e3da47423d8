"""From the trace's marker operators for attention and recurrent layers to operators that a runtime has.

exact: bit for bit the same for a tree node, a chain and a single token; ONNX Runtime on CPUs, and in half precision on
GPUs.
fast: ONNX's own Attention operator; any ONNX Runtime provider.
portable: operators of opset 18 only, in fp32 throughout, and new rows of the KV cache as results; engines that know no
newer operators, or cannot update a cache.
portable-exact: the same, with exact's sums in float64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from reader_edge_export.lowering.exact import ExactAttention
from reader_edge_export.lowering.exact_sums import float64
from reader_edge_export.lowering.int8_cache import Int8CacheAttention
from reader_edge_export.lowering.kv_rows import scatter_rows, visible_rows
from reader_edge_export.lowering.portable import PortableAttention
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import softplus
from reader_edge_export.operators.recurrent_operators import (
    Recurrence,
    StateInputs,
    TreeInputs,
    tree_conv,
    tree_delta,
    tree_mamba2,
)
from reader_edge_export.trace.markers import (
    MARKER_DOMAIN,
    TREE_CONV,
    TREE_DELTA,
    TREE_MAMBA2,
    TreeAttentionMarker,
    attention_markers,
    recurrence_markers,
)
from reader_edge_runtime.package.manifest import ROW_ATTENTIONS

_IR_VERSIONS = {18: 8, 24: 11}  # ONNX Runtime refuses the newer IR versions that onnx would write
_DOUBLE = ir.DataType.DOUBLE


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


def lower_fast(editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
    """TensorScatter into the cache, then Attention of opset 24 over the visible rows: the marker's three outputs."""
    present = scatter_rows(editor, marker)
    attributes = {"scale": marker.scale} | ({"softcap": marker.softcap} if marker.softcap else {})
    inputs = [marker.query, *visible_rows(editor, marker.mask, *present), marker.mask]
    return editor.op("Attention", inputs, attributes), *present


def lower_recurrences(editor: GraphEditor) -> None:
    """Replace every marker of a recurrent layer, and what decays are computed with."""
    for marker in recurrence_markers(editor.graph):
        tree = TreeInputs(marker.parents, marker.num_kept, marker.num_pending)
        made = _BUILD[marker.node.op_type](editor, *marker.inputs, tree, StateInputs(marker.state, marker.pending))
        editor.replace(marker.node, [made.output, made.present, made.capsules])
    for node in list(editor.graph):
        if node.op_type == "Softplus" and node.domain == "" and node.inputs[0] is not None:
            editor.replace(node, [softplus(editor, node.inputs[0])])


def _conv(editor: GraphEditor, rows: ir.Value, weight: ir.Value, *others: Any) -> Recurrence:
    bias, tree, state = others if len(others) == 3 else (None, *others)
    return tree_conv(editor, rows, weight, bias, tree, state)


_BUILD: dict[str, Callable[..., Recurrence]] = {TREE_CONV: _conv, TREE_DELTA: tree_delta, TREE_MAMBA2: tree_mamba2}


def lower_double(editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Attention in float64 by standard operators, for packages in half precision: a GPU's bits then keep to the tree.

    In fp32 a sum over the visible rows takes another order for scattered ancestors than for adjacent ones, and kernels
    change with the number of rows. In float64 the orders differ by 1e-16 of the sum, which rounding to half precision
    hides.

    The G query heads that share a KV head are folded into rows, so keys and values are read once for all of them.
    """
    present = scatter_rows(editor, marker)
    keys, values = (editor.cast(rows, _DOUBLE) for rows in visible_rows(editor, marker.mask, *present))
    query = float64(editor, "Mul", editor.cast(marker.query, _DOUBLE), _scalar(editor, marker.scale))
    folded = _reshaped(editor, query, 0, marker.num_kv_heads, -1, marker.head_dim)
    scores = float64(editor, "MatMul", folded, editor.transpose(keys, 0, 1, 3, 2))
    if marker.softcap:
        softcap = _scalar(editor, marker.softcap)
        capped = float64(editor, "Tanh", float64(editor, "Div", scores, softcap))
        scores = float64(editor, "Mul", capped, softcap)
    mask = editor.cast(marker.mask, _DOUBLE)
    if marker.group_size > 1:
        mask = float64(editor, "Tile", mask, editor.int64s(1, 1, marker.group_size, 1))
    masked = float64(editor, "Add", scores, mask)
    weights = editor.op("Softmax", [masked], {"axis": -1}, dtype=_DOUBLE)
    mean = _reshaped(editor, float64(editor, "MatMul", weights, values), 0, marker.num_heads, -1, marker.head_dim)
    return editor.cast(mean, ir.DataType.FLOAT), *present


def _scalar(editor: GraphEditor, value: float) -> ir.Value:
    return editor.constant(np.array(value, np.float64), "scalar")


def _reshaped(editor: GraphEditor, value: ir.Value, *sizes: int) -> ir.Value:
    return float64(editor, "Reshape", value, editor.int64s(*sizes))
