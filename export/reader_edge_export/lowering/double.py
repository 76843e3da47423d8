"""Attention in float64 by standard operators, for packages in half precision: a GPU's bits then keep to the tree.

In fp32 a sum over the visible rows takes another order for scattered ancestors than for adjacent ones, and kernels
change with the number of rows. In float64 the orders differ by 1e-16 of the sum, which rounding to fp16 or bf16 hides.
"""

import numpy as np
import onnx_ir as ir

from reader_edge_export.lowering.exact_sums import float64
from reader_edge_export.lowering.kv_rows import scatter_rows, visible_rows
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.trace.markers import TreeAttentionMarker

_DOUBLE = ir.DataType.DOUBLE


def lower_double(editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
    """TensorScatter into the cache, then MatMul, Softmax, MatMul over the visible rows: the marker's three outputs.

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
