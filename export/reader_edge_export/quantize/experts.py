"""Stores the matrices of a mixture's experts, one expert after the other, and makes the products by them.

Each expert has smoothing scales of its own. Before an activation they read the same rows, whose moments they share; the
inputs behind it are an expert's own, and only their magnitudes are known (`ExpertInputs`).
"""

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from reader_edge_export.calibration.calibration import Calibration, ExpertInputs, InputMoments
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.weight_file import Parts, TensorSpec
from reader_edge_export.operators.block_linear import StoredBlocks
from reader_edge_export.operators.definitions import Int8Matrix
from reader_edge_export.operators.experts import block_experts, gguf_experts, int8_experts, plain_experts
from reader_edge_export.operators.hadamard_linear import MAX_INPUTS, BlockMatrix
from reader_edge_export.progress import Advance
from reader_edge_export.quantize.hadamard import HadamardRotation, Hadamards, block_size
from reader_edge_export.quantize.int4 import int4_specs, quantize_blocks
from reader_edge_export.quantize.int8 import int8_specs, quantize_rotated
from reader_edge_export.sources.weights import ExpertMatrices, experts_of
from reader_edge_export.trace.markers import ExpertLinearMarker, expert_markers
from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.package.manifest import Precision

# weight (K, J) -> its rotated form, outputs first, and scales.
Quantize = Callable[[Float32Array, HadamardRotation, InputMoments], tuple[Array, ...]]
# Stores matrices of experts and multiplies by them: rows (R, K) and the expert (R,) of each -> (R, J).
Multiply = Callable[[ir.Value, ir.Value, ExpertLinearMarker], ir.Value]


def replace_experts(editor: GraphEditor, multiply: Multiply, advance: Advance) -> None:
    """Give every product by experts its stored form. advance: gets how many numbers were stored."""
    for marker in expert_markers(editor.graph):
        matrices = _matrices(marker)
        _, num_outputs, num_inputs = matrices.shape
        rows = marker.rows
        if rows.shape is not None and rows.shape[1] == 1 != marker.num_ranks:
            rows = editor.op("Tile", [rows, editor.int64s(1, marker.num_ranks, 1)])
        flat = editor.op("Reshape", [rows, editor.int64s(-1, num_inputs)])
        experts = editor.op("Reshape", [marker.experts, editor.int64s(-1)], dtype=ir.DataType.INT64)
        product = multiply(flat, experts, marker)
        sizes = editor.int64s(-1, marker.num_ranks, num_outputs)
        editor.replace(marker.node, [editor.op("Reshape", [product, sizes])])
        advance(matrices.size)


def multiply_plainly(editor: GraphEditor, rows: ir.Value, experts: ir.Value, marker: ExpertLinearMarker) -> ir.Value:
    """`Multiply` in fp32, by matrices that are read when they are written."""
    return plain_experts(editor, rows, experts, marker.weight)


class RoundedExpertProducts:
    """In the blocks of their file where they are kept and can be; in int4, or int8 by one or two planes of rows."""

    def __init__(
        self, editor: GraphEditor, precision: Precision, calibration: Calibration, hadamards: Hadamards
    ) -> None:
        self._editor = editor
        self._precision = precision
        self._calibration = calibration
        self._hadamards = hadamards

    def multiply(self, rows: ir.Value, experts: ir.Value, marker: ExpertLinearMarker) -> ir.Value:
        editor, matrices = self._editor, _matrices(marker)
        if self._precision.keeps_blocks and matrices.block_type is not None:
            return gguf_experts(editor, rows, experts, self._kept(matrices))
        hadamard = self._hadamards.value(block_size(matrices.shape[2]))
        num_planes = 2 if matrices.is_sensitive else self._precision.num_planes
        if self._precision.is_four_bit and matrices.shape[2] <= MAX_INPUTS and not matrices.is_sensitive:
            specs = int4_specs(matrices.name, *matrices.shape)
            values, block_scales, scales, smoothing = self._stored(matrices, specs, quantize_blocks)
            blocks = BlockMatrix(values, block_scales, scales, smoothing, hadamard)
            return block_experts(editor, rows, experts, blocks)
        specs = int8_specs(matrices.name, *matrices.shape)
        values, scales, smoothing = self._stored(matrices, specs, quantize_rotated)
        matrix = Int8Matrix(values, scales, smoothing, hadamard)
        return int8_experts(editor, rows, experts, matrix, num_planes)

    def _stored(self, matrices: ExpertMatrices, specs: list[TensorSpec], quantize: Quantize) -> list[ir.Value]:
        """Initializers of these specs, the first written expert by expert."""

        def rounded() -> Iterator[Array | Parts]:
            others = [np.empty(spec.shape, spec.dtype) for spec in specs[1:]]

            def values() -> Parts:
                for expert in range(matrices.shape[0]):
                    weight, inputs = matrices.read(expert).T, self._inputs_of(matrices, expert)
                    rotation = HadamardRotation.fit(weight, inputs)
                    integers, *scales = quantize(weight, rotation, inputs)
                    for other, array in zip(others, (*scales, rotation.smoothing), strict=True):
                        other[expert] = array
                    yield integers[None]

            yield values()
            yield from others

        return self._editor.matrix([matrices.name], specs, rounded)

    def _inputs_of(self, matrices: ExpertMatrices, expert: int) -> InputMoments:
        if matrices.is_sensitive:  # and rounded finely, whatever its inputs
            return ExpertInputs.none(1, matrices.shape[2]).of(0)
        if self._calibration.has_inputs_of(matrices.name):
            return self._calibration.inputs_of(matrices.name)
        return self._calibration.expert_inputs_of(matrices.name, matrices.shape[0]).of(expert)

    def _kept(self, matrices: ExpertMatrices) -> StoredBlocks:
        num_experts, num_outputs, num_inputs = matrices.shape
        block_type = matrices.block_type
        assert block_type is not None
        arrays: dict[str, Array] = {}
        for expert in range(num_experts):
            for part, array in matrices.blocks(expert).arrays.items():
                if part not in arrays:
                    arrays[part] = np.empty((num_experts, *array.shape), array.dtype)
                arrays[part][expert] = array
        name = f"{matrices.name}.{block_type.name.lower()}"
        values = {part: self._editor.constant(array, f"{name}.{part}") for part, array in arrays.items()}
        return StoredBlocks(block_type, (num_outputs, num_inputs), values)


def _matrices(marker: ExpertLinearMarker) -> ExpertMatrices:
    matrices = experts_of(marker.weight)
    assert matrices is not None
    return matrices
