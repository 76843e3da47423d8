"""The vocabulary matrix (V, E): looked up by token at the start, multiplied by at the end; tied, it is stored once.

Stored as (V, E), a lookup reads one short run of memory. The logit head multiplies by its transpose, which ONNX
Runtime folds and packs when it loads the graph: the file holds one copy, and the bits of a row are the same at every
width, as with any constant matrix.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.onnx_graph.graph_editor import GraphEditor, constant_shape
from reader_edge_export.onnx_graph.weight_file import TensorSpec
from reader_edge_export.operators.block_linear import StoredBlocks, looked_up
from reader_edge_export.operators.definitions import Int8Matrix
from reader_edge_export.operators.hadamard_linear import BlockMatrix, block_rows
from reader_edge_export.quantize.gguf_products import GgufProducts
from reader_edge_export.quantize.int4 import Int4Products
from reader_edge_export.quantize.int8 import quantize_columns
from reader_edge_export.quantize.linear import MergedProduct
from reader_edge_export.sources.weights import Matrix, matrix_of
from reader_edge_export.trace.markers import LogitHeadMarker, logit_head_marker

_STORED = np.int8
_LOOKUP_BLOCK = 64  # numbers of a row with a scale of their own: 6 % more bytes than one for the whole row
Stored = StoredBlocks | Int8Matrix | BlockMatrix

HIDDEN_STATES = "hidden_states"  # what the logit head reads; an output of packages for the CPU


def lookup_block(width: int) -> int:
    """How many numbers of a row share a scale."""
    return _LOOKUP_BLOCK if width % _LOOKUP_BLOCK == 0 else width


def token_lookups(graph: ir.Graph) -> list[ir.Node]:
    """The lookups of the source's matrices by `input_ids`."""
    return [
        node
        for node in graph
        if node.op_type == "Gather" and matrix_of(node.inputs[0]) is not None and _is_input_ids(node.inputs[1])
    ]


def store_table(editor: GraphEditor, lookup: ir.Node, gguf: GgufProducts, name: str) -> None:
    """Store what a lookup reads, a matrix (V, E): among `gguf`, or in int8. It is read a few rows at a time."""
    matrix = matrix_of(lookup.inputs[0])
    indices = lookup.inputs[1]
    assert matrix is not None
    assert indices is not None
    stays = gguf.store_gguf(matrix.transposed, name)
    rows = _rounded_rows(editor, matrix, indices, name) if stays is None else looked_up(editor, stays, indices)
    editor.replace(lookup, [rows])


def round_tables(editor: GraphEditor, name: str) -> None:
    """Store in int8 what is looked up of the source's matrices by other ids (B, N) than those of `input_ids`."""
    by_token = token_lookups(editor.graph)
    for lookup in list(editor.graph):
        indices = lookup.inputs[1] if lookup.op_type == "Gather" and lookup not in by_token else None
        if indices is not None and (matrix := matrix_of(lookup.inputs[0])) is not None:
            editor.replace(lookup, [_rounded_rows(editor, matrix, indices, name)])


def _rounded_rows(editor: GraphEditor, matrix: Matrix, indices: ir.Value, name: str) -> ir.Value:
    """Rows (B, N, E) of a matrix (V, E)."""
    num_tokens, width = matrix.shape
    block = lookup_block(width)
    specs = [
        TensorSpec.of(f"{name}.int8", _STORED, num_tokens, width),
        TensorSpec.of(f"{name}.scale", np.float32, num_tokens, width // block),
    ]
    integers, scales = editor.matrix([matrix.name], specs, lambda: _rounded_table(matrix, block))
    looked_up = editor.op("Gather", [integers, indices], dtype=integers.dtype or ir.DataType.INT8)
    sizes = editor.int64s(0, 0, width // block, block)
    blocks = editor.op("Reshape", [editor.cast(looked_up, ir.DataType.FLOAT), sizes])
    units = editor.op("Unsqueeze", [editor.op("Gather", [scales, indices]), editor.int64s(-1)])
    return editor.op("Reshape", [editor.op("Mul", [blocks, units]), editor.int64s(0, 0, width)])


def _rounded_table(matrix: Matrix, block: int) -> Iterator[npt.NDArray[np.float32] | Iterator[npt.NDArray[np.int8]]]:
    """Integers of some rows after others, then the scales of all."""
    scales: list[npt.NDArray[np.float32]] = []

    def integers() -> Iterator[npt.NDArray[np.int8]]:
        for rows in matrix.row_parts():
            columns, units = quantize_columns(rows.reshape(-1, block).T)
            scales.append(units.reshape(len(rows), -1))
            yield columns.T.reshape(rows.shape)

    yield integers()
    yield np.concatenate(scales)


def _is_input_ids(value: ir.Value | None) -> bool:
    while value is not None and (node := value.producer()) is not None and node.op_type in ("Reshape", "Identity"):
        value = node.inputs[0]
    return value is not None and value.name == "input_ids"


def vocabulary_head(graph: ir.Graph) -> tuple[Matrix, bool]:
    """The logit head (E, V) of a graph that has its marker, and whether embeddings are its columns."""
    weight, embedding = logit_head_marker(graph).weight, embedding_lookup(graph)
    return _matrix(weight).transposed, embedding is not None and embedding.inputs[0] is weight


def store_vocabulary_fp32(editor: GraphEditor) -> None:
    """Replace the LogitHead marker by a product with the fp32 matrix as it is."""
    marker = logit_head_marker(editor.graph)
    hidden = _wanted_rows(editor, marker)
    logits = editor.op("MatMul", [hidden, editor.transpose(marker.weight, 1, 0)])
    if marker.bias is not None:
        logits = editor.op("Add", [logits, marker.bias])
    editor.replace(marker.node, [logits])


def store_vocabulary(
    editor: GraphEditor, products: GgufProducts | Int4Products, gguf: GgufProducts, calibration: Calibration
) -> None:
    """Store embedding and logit head, one matrix where they are tied; the head alone where no embedding is left.

    The head is stored as `products` stores it. An embedding of its own is among `gguf`, or int8, and so are further
    tables that are looked up by token.
    """
    marker = logit_head_marker(editor.graph)
    embedding = embedding_lookup(editor.graph)
    for lookup in token_lookups(editor.graph):
        if lookup is not embedding:
            store_table(editor, lookup, gguf, "table")
    weight, is_tied = vocabulary_head(editor.graph)
    product = MergedProduct(_wanted_rows(editor, marker), [weight], marker.bias, calibration, "vocabulary")
    logits, head = products.multiply_stored(product)
    editor.replace(marker.node, [logits])
    if embedding is None:
        return
    if is_tied:
        look_up_stored(editor, head, embedding)
    else:
        store_table(editor, embedding, gguf, "embedding")


def embedding_lookup(graph: ir.Graph) -> ir.Node | None:
    """That of the vocabulary, whose rows are as long as the head's, among others by token; None where none is left."""
    width = constant_shape(logit_head_marker(graph).weight)[1]
    return next((node for node in token_lookups(graph) if _matrix(node.inputs[0]).shape[1] == width), None)


def look_up_stored(editor: GraphEditor, stored: Stored, embedding: ir.Node) -> None:
    """Put rows (B, N, E) of a stored matrix (V, E) in the place of an embedding's lookup."""
    indices = embedding.inputs[1]
    assert indices is not None
    if isinstance(stored, StoredBlocks):
        rows = looked_up(editor, stored, indices)
    else:
        if isinstance(stored, BlockMatrix):
            integers = block_rows(editor, stored, indices)
        else:
            integers = editor.op("Gather", [stored.values, indices], dtype=stored.values.dtype or ir.DataType.INT8)
            integers = editor.cast(integers, ir.DataType.FLOAT)
        rows = _scaled(editor, _rotated_back(editor, integers, stored), stored.scales, indices)
    editor.replace(embedding, [rows])


def _scaled(editor: GraphEditor, rows: ir.Value, scales: ir.Value, indices: ir.Value) -> ir.Value:
    """Rows (B, N, E) times the scales (V,) of their tokens (B, N)."""
    row_scales = editor.op("Unsqueeze", [editor.op("Gather", [scales, indices]), editor.int64s(-1)])
    return editor.op("Mul", [rows, row_scales])


def _matrix(value: ir.Value | None) -> Matrix:
    matrix = matrix_of(value)
    assert matrix is not None
    return matrix


def _rotated_back(editor: GraphEditor, rows: ir.Value, head: Int8Matrix | BlockMatrix) -> ir.Value:
    """Integers (B, N, E) of the rotated head, as the plain matrix has them: sums of a block are exact in fp32."""
    width, block = constant_shape(head.smoothing)[0], constant_shape(head.hadamard)[0]
    blocks = editor.op("Reshape", [rows, editor.int64s(0, 0, width // block, block)])
    joined = editor.op("Reshape", [editor.op("MatMul", [blocks, head.hadamard]), editor.int64s(0, 0, width)])
    return editor.op("Mul", [joined, head.smoothing])


def _wanted_rows(editor: GraphEditor, marker: LogitHeadMarker) -> ir.Value:
    """hidden (B, N, E) -> (B, R, E)."""
    indices = editor.op("Unsqueeze", [marker.rows, editor.int64s(2)], dtype=ir.DataType.INT64)
    hidden = editor.op("GatherND", [marker.hidden, indices], {"batch_dims": 1})
    hidden.name, hidden.shape = HIDDEN_STATES, ir.Shape(["B", "R", constant_shape(marker.weight)[1]])
    return hidden
