"""The element type of every value of a traced graph, which the trace leaves open.

ONNX's own inference does not know the markers; a decoder's trace has few operators whose result differs in type from
their first input.
"""

import onnx_ir as ir

_INTEGER = ("Shape", "Size")
_BOOLEAN = ("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or")


def mark_data_types(graph: ir.Graph) -> None:
    """Set the type of every node's outputs, in execution order."""
    for node in graph:
        for output in node.outputs:
            data_type = _data_type(node)
            if data_type is not None:
                output.dtype = data_type


def drop_plain_casts(graph: ir.Graph) -> None:
    """Remove casts from fp32 to fp32, which models that also run in half precision leave everywhere."""
    for node in list(graph):
        source = node.inputs[0] if node.op_type == "Cast" else None
        if source is None or source.dtype != ir.DataType.FLOAT or node.outputs[0].dtype != ir.DataType.FLOAT:
            continue
        ir.convenience.replace_all_uses_with(node.outputs[0], source, replace_graph_outputs=True)
        graph.remove(node, safe=True)


def _data_type(node: ir.Node) -> ir.DataType | None:
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].as_int())
    if node.op_type == "ConstantOfShape":
        filler = node.attributes.get("value")
        return filler.as_tensor().dtype if filler is not None else ir.DataType.FLOAT
    if node.op_type in _INTEGER:
        return ir.DataType.INT64
    if node.op_type in _BOOLEAN:
        return ir.DataType.BOOL
    decisive = node.inputs[1 if node.op_type == "Where" else 0]
    return decisive.dtype if decisive is not None else None
