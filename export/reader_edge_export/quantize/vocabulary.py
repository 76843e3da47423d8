"""The vocabulary matrix (V, E): looked up by token at the start, multiplied by at the end; tied, it is stored once.

Stored as (V, E), a lookup reads one short run of memory. The logit head multiplies by its transpose, which ONNX
Runtime folds and packs when it loads the graph: the file holds one copy, and the bits of a row are the same at every
width, as with any constant matrix.
"""

import numpy as np
import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor, matrix_shape, weight_of
from reader_edge_export.markers import LogitHeadMarker, logit_head_marker
from reader_edge_export.quantize.int8 import Int8Products, store_columns


def store_vocabulary_fp32(editor: GraphEditor) -> None:
    """Replace the LogitHead marker by a product with the fp32 matrix as it is."""
    marker = logit_head_marker(editor.graph)
    hidden = _wanted_rows(editor, marker)
    logits = editor.op("MatMul", [hidden, editor.transpose(marker.weight, 1, 0)])
    if marker.bias is not None:
        logits = editor.op("Add", [logits, marker.bias])
    editor.replace(marker.node, [logits])


def store_vocabulary_int8(editor: GraphEditor, products: Int8Products) -> None:
    """Store embedding and logit head as int8 with a scale per token; one matrix where they are tied."""
    marker = logit_head_marker(editor.graph)
    embedding = _embedding_lookup(editor.graph)
    stored, scales = _store(editor, marker.weight, "vocabulary")
    hidden = _wanted_rows(editor, marker)
    editor.replace(marker.node, [products.multiply_stored(hidden, stored, scales, marker.bias)])
    if embedding.inputs[0] is not marker.weight:
        stored, scales = _store(editor, embedding.inputs[0], "embedding")
    _look_up(editor, embedding, stored, scales)


def _store(editor: GraphEditor, matrix: ir.Value | None, name: str) -> tuple[ir.Value, ir.Value]:
    weight = weight_of(matrix)
    assert weight is not None
    return store_columns(editor, weight.astype(np.float32).T, name)


def _look_up(editor: GraphEditor, embedding: ir.Node, stored: ir.Value, scales: ir.Value) -> None:
    token_ids = embedding.inputs[1]
    rows = editor.op("Gather", [stored, token_ids], dtype=ir.DataType.INT8)
    row_scales = editor.op("Unsqueeze", [editor.op("Gather", [scales, token_ids]), editor.int64s(-1)])
    editor.replace(embedding, [editor.op("Mul", [editor.cast(rows, ir.DataType.FLOAT), row_scales])])


def _wanted_rows(editor: GraphEditor, marker: LogitHeadMarker) -> ir.Value:
    """hidden (B, N, E) -> (B, R, E)."""
    indices = editor.op("Unsqueeze", [marker.rows, editor.int64s(2)], dtype=ir.DataType.INT64)
    hidden = editor.op("GatherND", [marker.hidden, indices], {"batch_dims": 1})
    hidden.shape = ir.Shape(["B", "R", matrix_shape(marker.weight)[1]])
    return hidden


def _embedding_lookup(graph: ir.Graph) -> ir.Node:
    for node in graph:
        if node.op_type == "Gather" and weight_of(node.inputs[0]) is not None and _is_input_ids(node.inputs[1]):
            return node
    raise AssertionError("the traced graph looks up no embedding")


def _is_input_ids(value: ir.Value | None) -> bool:
    while value is not None and (node := value.producer()) is not None and node.op_type in ("Reshape", "Identity"):
        value = node.inputs[0]
    return value is not None and value.name == "input_ids"
