"""Recurrent layers as operators over draft trees, the same in every form of attention."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

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
from reader_edge_export.trace.markers import TREE_CONV, TREE_DELTA, TREE_MAMBA2, recurrence_markers


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
