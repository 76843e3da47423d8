"""gate * sigmoid(gate) * up, of one product's two halves, becomes the operator SwiGLU."""

import onnx_ir as ir

from reader_edge_export.fusion.matching import consumers, cut_of, other_input
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import swiglu


def fuse_swiglu(editor: GraphEditor) -> None:
    """Fuse every gated product whose gate and up lie side by side."""
    for node in editor.graph:
        if node.op_type == "Sigmoid":
            _fuse(editor, node)


def _fuse(editor: GraphEditor, sigmoid: ir.Node) -> None:
    """Follow one gate to the product with its other half, and replace what is on the way."""
    gate = cut_of(sigmoid.inputs[0])
    if gate is None or gate.begin != 0 or 2 * gate.end != gate.size:
        return
    for activated in consumers(sigmoid.outputs[0], "Mul"):
        is_gate = other_input(activated, sigmoid.outputs[0]) is sigmoid.inputs[0]
        for product in consumers(activated.outputs[0], "Mul") if is_gate else ():
            up = cut_of(other_input(product, activated.outputs[0]))
            if up is not None and up.source is gate.source and (up.begin, up.end) == (gate.end, gate.size):
                editor.replace(product, [swiglu(editor, gate.source)])
                return
