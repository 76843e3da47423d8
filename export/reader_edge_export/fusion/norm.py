"""x / sqrt(mean(x^2) + epsilon) * weight becomes RMSNormalization (opset 23), which sums in fp32 in any precision."""

import onnx_ir as ir

from reader_edge_export.fusion.matching import consumers, number_of, other_input, producer
from reader_edge_export.graph_editor import GraphEditor, weight_of


def fuse_norms(editor: GraphEditor) -> None:
    """Fuse every root-mean-square norm with a constant weight."""
    for node in editor.graph:
        if node.op_type == "ReduceMean":
            _fuse(editor, node)


def _fuse(editor: GraphEditor, mean: ir.Node) -> None:
    """Follow one mean of squares to the weighted result, and replace what is on the way."""
    square = producer(mean.inputs[0], "Pow")
    if square is None or square.inputs[0] is None or number_of(square.inputs[1]) != 2.0 or not _is_over_last(mean):
        return
    source = square.inputs[0]
    shifted = next(consumers(mean.outputs[0], "Add"), None)
    epsilon = number_of(other_input(shifted, mean.outputs[0])) if shifted is not None else None
    root = next(consumers(shifted.outputs[0], "Sqrt"), None) if shifted is not None else None
    inverse = next(consumers(root.outputs[0], "Div"), None) if root is not None else None
    if epsilon is None or inverse is None or number_of(inverse.inputs[0]) != 1.0:
        return
    normed = next(consumers(inverse.outputs[0], "Mul"), None)
    if normed is None or other_input(normed, inverse.outputs[0]) is not source:
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
