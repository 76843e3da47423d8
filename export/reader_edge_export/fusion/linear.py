"""A product over rows flattened to two axes becomes MatMul and Add over the rows as they are.

transformers' Conv1D (GPT-2) flattens, and gives the rows their sizes back: arithmetic that a GPU's provider would leave
to the host, in the midst of every layer.
"""

import onnx_ir as ir

from reader_edge_export.fusion.matching import consumers, producer
from reader_edge_export.graph_editor import GraphEditor, weight_of

_PLAIN = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}


def unflatten_products(editor: GraphEditor) -> None:
    """Replace every Gemm between a reshape to rows and a reshape back."""
    for node in list(editor.graph):
        if node.op_type == "Gemm":
            _unflatten(editor, node)


def _unflatten(editor: GraphEditor, product: ir.Node) -> None:
    flat = producer(product.inputs[0], "Reshape")
    restored = next(consumers(product.outputs[0], "Reshape"), None)
    weight = weight_of(product.inputs[1])
    if flat is None or flat.inputs[0] is None or restored is None or weight is None or not _is_plain(product):
        return
    rows = flat.inputs[0]
    sizes = rows.shape[:-1] if rows.shape is not None else None
    wanted = restored.outputs[0].shape
    if sizes is None or wanted is None or tuple(wanted) != (*sizes, weight.shape[1]):
        return
    output = editor.op("MatMul", [rows, product.inputs[1]])
    if len(product.inputs) > 2:
        output.shape = wanted
        output = editor.op("Add", [output, product.inputs[2]])
    editor.replace(restored, [output])


def _is_plain(product: ir.Node) -> bool:
    attributes = {name: attribute.value for name, attribute in product.attributes.items()}
    return {**_PLAIN, **attributes} == _PLAIN
