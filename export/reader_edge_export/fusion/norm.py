"""x / sqrt(mean(x^2) + epsilon) * weight becomes RMSNormalization (opset 23), which sums in fp32 in any precision."""

import onnx_ir as ir

from reader_edge_export.fusion.matching import consumers, follow, number_of, other_input, producer
from reader_edge_export.graph_editor import GraphEditor, weight_of


def fuse_norms(editor: GraphEditor) -> None:
    """Fuse every root-mean-square norm with a constant weight."""
    for node in editor.graph:
        if node.op_type == "ReduceMean":
            _fuse(editor, node)


def _fuse(editor: GraphEditor, mean: ir.Node) -> None:
    """Follow one mean of squares to the weighted result, and replace what is on the way."""
    square = producer(mean.inputs[0], "Pow")
    nodes = follow(mean.outputs[0], "Add", "Sqrt", "Div", "Mul")
    if square is None or number_of(square.inputs[1]) != 2.0 or not nodes or not _is_over_last(mean):
        return
    source, (shifted, _, inverse, normed) = square.inputs[0], nodes
    epsilon = number_of(other_input(shifted, mean.outputs[0]))
    is_applied = number_of(inverse.inputs[0]) == 1.0 and other_input(normed, inverse.outputs[0]) is source
    if epsilon is None or not is_applied:
        return
    for weighted in consumers(normed.outputs[0], "Mul"):
        scale = other_input(weighted, normed.outputs[0])
        weight = weight_of(scale)
        if weight is not None and weight.ndim == 1:
            attributes = {"axis": -1, "epsilon": epsilon, "stash_type": int(ir.DataType.FLOAT)}
            editor.replace(weighted, [editor.op("RMSNormalization", [source, scale], attributes)])
            return


def _is_over_last(mean: ir.Node) -> bool:
    axes = weight_of(mean.inputs[1]) if len(mean.inputs) > 1 else None
    return axes is not None and axes.tolist() == [-1]
