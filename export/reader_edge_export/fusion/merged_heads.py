"""Attention's heads, side by side as the next product wants them: nothing to turn there and back for."""

import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor, weight_of

_BACK_AND_FORTH = ("Reshape", "Transpose", "Transpose", "Reshape")


def fuse_merged_heads(editor: GraphEditor) -> None:
    """Leave out what cuts an IntegerAttention's output into heads only to merge them again."""
    for node in editor.graph:
        if node.op_type == "IntegerAttention":
            _fuse(node.outputs[0])


def _fuse(merged: ir.Value) -> None:
    nodes: list[ir.Node] = []
    value = merged
    for op_type in _BACK_AND_FORTH:
        uses = list(value.uses())
        if len(uses) != 1 or uses[0].node.op_type != op_type:
            return
        nodes.append(uses[0].node)
        value = nodes[-1].outputs[0]
    cut, turned, returned, joined = nodes
    sizes, perms = weight_of(joined.inputs[1]), [node.attributes["perm"].as_ints() for node in (turned, returned)]
    heads = weight_of(cut.inputs[1])
    if sizes is None or heads is None or perms[0] != perms[1]:
        return
    if sizes.tolist() in ([0, 0, -1], [0, 0, int(heads[2:].prod())]):
        merged.shape = value.shape
        ir.convenience.replace_all_uses_with(value, merged)
