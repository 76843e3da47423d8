"""The head of an assistant with centroids: only the tokens of a row's best centroids get a logit."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.weight_file import TensorSpec
from reader_edge_export.quantize.int8 import quantize_columns
from reader_edge_export.quantize.vocabulary import HIDDEN_STATES
from reader_edge_export.sources.weights import Matrix, MatrixTensor, Weights
from reader_edge_runtime.arrays import Float32Array, Int8Array, Int64Array

CANDIDATES = "candidates.weight"  # of the module, and its rows in the order of token_ids
_PART_NUMBERS = 1 << 24


class Centroids(NamedTuple):
    """number: C, which the vocabulary is a multiple of. num_chosen: of a row, the best ones."""

    number: int
    num_chosen: int

    def num_named(self, num_tokens: int) -> int:
        """Tokens that a row names, of so many."""
        return num_tokens // self.number * self.num_chosen


def add_candidates(
    editor: GraphEditor,
    centroids: Centroids,
    shape: tuple[int, int],
    order: Int64Array,
    weights: Weights,
    precision: str,
) -> ir.Value:
    """Replace a graph's logits, which are scores of centroids (B, R, C), by those of their tokens (B, R, X).

    shape: of the candidates, (V, h). order: (V,), the ids of their tokens. precision: of the candidates, "fp32" or
    "int8", whose rows have a scale each. Returns the tokens' ids, int64 (B, R, X).
    """
    (num_centroids, num_chosen), (num_tokens, size) = centroids, shape
    by_centroid, num_named = num_tokens // num_centroids, centroids.num_named(num_tokens)
    scores = next(value for value in editor.graph.outputs if value.name == "logits")
    read = next(value for node in editor.graph for value in node.outputs if value.name == HIDDEN_STATES)
    _, chosen = editor.op_multi("TopK", [scores, editor.int64s(num_chosen)], 2, {"axis": -1})
    chosen.dtype = ir.DataType.INT64

    def of_chosen(table: ir.Value, *sizes: int) -> ir.Value:
        dtype = table.dtype or ir.DataType.FLOAT
        rows = editor.op("Gather", [table, chosen], dtype=dtype)  # a centroid's lie one behind the other
        return editor.op("Reshape", [rows, editor.int64s(0, 0, *sizes)], dtype=dtype)

    matrix = Matrix(CANDIDATES, (num_tokens, size), False, weights)
    scales: ir.Value | None = None
    if precision == "fp32":
        stored = editor.initializer(MatrixTensor(matrix))
        table = editor.op("Reshape", [stored, editor.int64s(num_centroids, by_centroid * size)])
    else:
        specs = [
            TensorSpec.of("candidates.int8", np.int8, num_centroids, by_centroid * size),
            TensorSpec.of("candidates.scale", np.float32, num_centroids, by_centroid),
        ]
        table, scales = editor.matrix([CANDIDATES], specs, lambda: _rounded(matrix, by_centroid))
    rows = of_chosen(table, num_named, size)
    column = editor.op("Unsqueeze", [read, editor.int64s(-1)])
    products = editor.op("MatMul", [rows if scales is None else editor.cast(rows, ir.DataType.FLOAT), column])
    logits = editor.op("Squeeze", [products, editor.int64s(-1)])
    if scales is not None:
        logits = editor.op("Mul", [logits, of_chosen(scales, num_named)])
    token_ids = of_chosen(editor.constant(order.reshape(num_centroids, -1), "token_ids"), num_named)
    editor.append()
    scores.name, logits.name, logits.shape = "centroid_scores", "logits", ir.Shape(["B", "R", num_named])
    token_ids.shape = logits.shape
    editor.graph.outputs[list(editor.graph.outputs).index(scores)] = logits
    return token_ids


def _rounded(matrix: Matrix, by_centroid: int) -> Iterator[Float32Array | Iterator[Int8Array]]:
    """Integers of the tokens of some centroids after others, then the scales of all."""
    num_tokens, size = matrix.shape
    step = max(_PART_NUMBERS // (by_centroid * size), 1) * by_centroid
    scales: list[Float32Array] = []

    def integers() -> Iterator[Int8Array]:
        for start in range(0, num_tokens, step):
            rows = matrix.weights.read_rows(matrix.name, start, min(start + step, num_tokens))
            columns, units = quantize_columns(rows.T)
            scales.append(units.reshape(-1, by_centroid))
            yield columns.T.reshape(-1, by_centroid * size)

    yield integers()
    yield np.concatenate(scales)
