"""Casts from fp32 to fp32, which models that also run in half precision leave everywhere."""

import onnx_ir as ir


def drop_plain_casts(graph: ir.Graph) -> None:
    """Remove every cast that changes nothing."""
    for node in list(graph):
        source = node.inputs[0] if node.op_type == "Cast" else None
        if source is not None and source.dtype == node.outputs[0].dtype == ir.DataType.FLOAT:
            ir.convenience.replace_all_uses_with(node.outputs[0], source, replace_graph_outputs=True)
            graph.remove(node, safe=True)
