"""Second moments of made-up rows, and products that rotate as int8 does and round nothing."""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from reader_edge_export.calibration.calibration import InputMoments
from reader_edge_export.onnx_graph.graph_editor import GraphEditor, constant_shape
from reader_edge_export.operators.definitions import Int8Matrix
from reader_edge_export.quantize.hadamard import HadamardRotation, Hadamards
from reader_edge_export.quantize.linear import MergedProduct
from reader_edge_runtime.arrays import Float32Array


def moments_of(rows: npt.NDArray[np.float32]) -> InputMoments:
    """Of rows (N, K)."""
    moments = InputMoments.none(rows.shape[1])
    moments.add(torch.from_numpy(rows))
    return moments


def unrounded_columns(weight: Float32Array) -> tuple[Float32Array, Float32Array]:
    """In the place of quantize_columns: weight (K, J) as it is, and scales (J,) of one."""
    return weight, np.ones(weight.shape[1], np.float32)


class RotatedFloatProducts:
    """In the place of Int8Products: the same face and the same rotation, fp32 throughout."""

    def __init__(self, editor: GraphEditor, precision: str, is_portable: bool) -> None:
        self._editor = editor
        self._hadamards = Hadamards(editor)

    def multiply_stored(self, product: MergedProduct) -> tuple[ir.Value, Int8Matrix]:
        editor, weight, name = self._editor, product.weight, product.name
        rotation = HadamardRotation.fit(weight, product.inputs)
        values = editor.constant(np.ascontiguousarray(rotation.weight(weight).T), f"{name}.float")
        scales = editor.constant(np.ones(weight.shape[1], np.float32), f"{name}.scale")
        smoothing = editor.constant(rotation.smoothing, f"{name}.smoothing")
        matrix = Int8Matrix(values, scales, smoothing, self._hadamards.value(rotation.block))
        smoothed = editor.op("Mul", [product.rows, matrix.smoothing])
        blocks = editor.op("Reshape", [smoothed, editor.int64s(0, 0, -1, constant_shape(matrix.hadamard)[0])])
        sums = editor.op("MatMul", [blocks, matrix.hadamard])
        rows = editor.op("Reshape", [sums, editor.int64s(0, 0, constant_shape(matrix.values)[1])])
        output = editor.op("MatMul", [rows, editor.transpose(matrix.values, 1, 0)])
        return output if product.bias is None else editor.op("Add", [output, product.bias]), matrix
