"""Exact attention over a KV cache of eight bits: keys and values are rounded when they are written.

Keys and queries are rotated over the head by a Walsh-Hadamard matrix, which leaves their products as they are, times
its size, and no component of a key much larger than others (QuaRot, arXiv 2404.00456). Queries are rounded to 127 steps
of their largest: a score is a sum of integers. So is a mean of values, whose weights are rounded to 32,767 steps
of their query's largest, the values' magnitudes counted in. Sums of integers are the same in any order.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from reader_edge_export.lowering.cache_rows import cache_rows, read_rows
from reader_edge_export.lowering.exact import AttentionOperator
from reader_edge_export.lowering.exact_sums import exponentials, float64, integer_mean, integers, magnitudes_of
from reader_edge_export.lowering.kv_rows import (
    fold_heads,
    masked,
    scatter_rows,
    set_cache_type,
    unfold_heads,
    visible_rows,
    with_no_value,
    with_sinks,
)
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.shared_constants import BYTE_WEIGHT_STEPS, ROW_STEPS, STEPS
from reader_edge_export.operators.definitions import hadamard_rows
from reader_edge_export.quantize.hadamard import block_size, drawn_signs, hadamard
from reader_edge_export.trace.markers import TreeAttentionMarker
from reader_edge_runtime.package.manifest import kv_row_size


class Int8CacheAttention(AttentionOperator):
    """CacheRows and TensorScatter into the cache, then Int8CacheAttention over its visible rows."""

    def __init__(self, editor: GraphEditor) -> None:
        super().__init__(editor, "Int8CacheAttention", merges_heads=True)
        self._hadamards: dict[int, tuple[ir.Value, ir.Value]] = {}

    def lower(self, editor: GraphEditor, marker: TreeAttentionMarker) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The marker's three outputs. Values that are the keys are rotated, and their mean is rotated back."""
        rotation = self.rotation(editor, marker.head_dim)
        if marker.key is not None and marker.value is not None:
            key, value = cache_rows(editor, marker.key, marker.value, *rotation)
            set_cache_type(marker, ir.DataType.INT8, kv_row_size("int8", marker.head_dim))
            marker = replace(marker, key=key, value=value)
        present = scatter_rows(editor, marker)
        mean = self.attend(editor, marker, present, *rotation)
        return (_rotated_back(editor, mean, marker.head_dim) if marker.is_latent else mean), *present

    def rotation(self, editor: GraphEditor, head_dim: int) -> tuple[ir.Value, ir.Value]:
        """Drawn signs (D,) and the matrix (b, b)."""
        if head_dim not in self._hadamards:
            matrix = editor.constant(hadamard(block_size(head_dim)), "hadamard")
            self._hadamards[head_dim] = editor.constant(drawn_signs(head_dim), "signs"), matrix
        return self._hadamards[head_dim]

    def _spell_out(
        self, editor: GraphEditor, marker: TreeAttentionMarker, present: Sequence[ir.Value], *constants: ir.Value
    ) -> ir.Value:
        keys, values = visible_rows(editor, marker.mask, *present)
        key_steps, key_magnitudes = read_rows(editor, keys, marker.head_dim)
        query = fold_heads(editor, marker, hadamard_rows(editor, marker.query, *constants))
        tops = magnitudes_of(editor, query)
        query_steps = integers(editor, query, tops, STEPS)
        sums = float64(editor, "MatMul", query_steps, editor.transpose(key_steps, 0, 1, 3, 2))
        scores = editor.cast(sums, ir.DataType.FLOAT)
        scores = editor.op("Mul", [scores, editor.transpose(key_magnitudes, 0, 1, 3, 2)])
        unit = float(np.float32(marker.scale)) / (STEPS * ROW_STEPS * block_size(marker.head_dim))
        scores = editor.op("Mul", [scores, editor.op("Mul", [tops, editor.scalar(unit)])])
        weights = exponentials(editor, with_sinks(editor, marker, masked(editor, marker, scores)))
        steps, magnitudes = (with_no_value(editor, marker, rows) for rows in read_rows(editor, values, marker.head_dim))
        mean = integer_mean(editor, weights, BYTE_WEIGHT_STEPS, steps, magnitudes, value_steps=ROW_STEPS)
        return unfold_heads(editor, marker, mean)


def _rotated_back(editor: GraphEditor, rows: ir.Value, head_dim: int) -> ir.Value:
    """Rows (..., D) that a key's rotation made: the matrix is its own inverse, but for its size."""
    block = block_size(head_dim)
    plain = editor.constant(np.ones(head_dim, np.float32), "plain")
    spread = hadamard_rows(editor, rows, plain, editor.constant(hadamard(block), "hadamard"))
    return editor.op("Mul", [spread, editor.constant(drawn_signs(head_dim) / np.float32(block), "signs")])
