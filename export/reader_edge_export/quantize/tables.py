"""Tables that are only looked up by token: rows of int8, which are not rotated, since no product reads them."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.weight_file import TensorForm
from reader_edge_export.operators.block_linear import looked_up
from reader_edge_export.quantize.gguf_products import GgufProducts
from reader_edge_export.quantize.int8 import quantize_columns
from reader_edge_export.sources.matrix import Matrix, matrix_of

_STORED = np.int8
_LOOKUP_BLOCK = 64  # numbers of a row with a scale of their own: 6 % more bytes than one for the whole row


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


def _rounded_rows(editor: GraphEditor, matrix: Matrix, indices: ir.Value, name: str) -> ir.Value:
    """Rows (B, N, E) of a matrix (V, E)."""
    num_tokens, width = matrix.shape
    block = lookup_block(width)
    forms = [
        TensorForm.of(f"{name}.int8", _STORED, num_tokens, width),
        TensorForm.of(f"{name}.scale", np.float32, num_tokens, width // block),
    ]
    integers, scales = editor.matrix([matrix.name], forms, lambda: _rounded(matrix, block))
    looked_up = editor.op("Gather", [integers, indices], dtype=integers.dtype or ir.DataType.INT8)
    sizes = editor.int64s(0, 0, width // block, block)
    blocks = editor.op("Reshape", [editor.cast(looked_up, ir.DataType.FLOAT), sizes])
    units = editor.op("Unsqueeze", [editor.op("Gather", [scales, indices]), editor.int64s(-1)])
    return editor.op("Reshape", [editor.op("Mul", [blocks, units]), editor.int64s(0, 0, width)])


def _rounded(matrix: Matrix, block: int) -> Iterator[npt.NDArray[np.float32] | Iterator[npt.NDArray[np.int8]]]:
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
