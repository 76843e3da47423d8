"""int8 weights with a scale per output; activations of int8 with a scale per row, or of two such planes.

ONNX Runtime's own dynamic quantisation scales activations per tensor, so that a node's logits depend on its
neighbours; here each row has its own scale, and integer sums are the same in any order.
"""

from functools import partial

import numpy as np
import onnx_ir as ir
import torch

from reader_edge_export.calibration.moments import InputMoments
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.shared_constants import STEPS
from reader_edge_export.onnx_graph.weight_file import TensorForm
from reader_edge_export.operators.definitions import Int8Matrix, hadamard_row_linear
from reader_edge_export.quantize.compensation import Compensation, for_parts_of_outputs
from reader_edge_export.quantize.hadamard import HadamardRotation, Hadamards, block_size
from reader_edge_export.quantize.linear import MergedProduct
from reader_edge_export.quantize.portable import PortableProducts
from reader_edge_runtime.arrays import Float32Array, Int8Array
from reader_edge_runtime.package.manifest import PRECISIONS


def quantize_columns(weight: Float32Array) -> tuple[Int8Array, Float32Array]:
    """weight (K, J) -> int8 (K, J) in [-127, 127], the nearest, and scales (J,)."""
    scales = _scales(weight)
    return np.clip(np.rint(weight / scales), -STEPS, STEPS).astype(np.int8), scales


def quantize_rotated(
    weight: Float32Array, rotation: HadamardRotation, inputs: InputMoments
) -> tuple[Int8Array, Float32Array]:
    """weight (K, J) -> its rotated form as int8 (J, K) in [-127, 127], errors made up for, and scales (J,)."""
    integers = np.empty(weight.shape[::-1], np.int8)
    scales = np.empty(weight.shape[1], np.float32)
    compensation = Compensation(rotation.moments(inputs))

    def round_part(outputs: slice) -> None:
        part = rotation.weight(weight[:, outputs])
        scales[outputs] = _scales(part)
        steps = torch.from_numpy(scales[outputs])  # the same for all blocks
        columns, _ = compensation.round(part, lambda _block: steps, -STEPS, STEPS)
        integers[outputs] = columns.T

    for_parts_of_outputs(weight.shape[1], round_part)
    return integers, scales


def _scales(weight: Float32Array) -> Float32Array:
    scales: Float32Array = np.abs(weight).max(axis=0) / np.float32(STEPS)
    scales[scales == 0] = 1
    return scales


def int8_forms(name: str, *sizes: int) -> list[TensorForm]:
    """Values, scales and smoothing scales of an Int8Matrix of these sizes, (J, K) or of experts (X, J, K)."""
    *leading, num_outputs, num_inputs = sizes
    return [
        TensorForm.of(f"{name}.int8", np.int8, *sizes),
        TensorForm.of(f"{name}.scale", np.float32, *leading, num_outputs),
        TensorForm.of(f"{name}.smoothing", np.float32, *leading, num_inputs),
    ]


def _rounded(product: MergedProduct) -> tuple[Int8Array, Float32Array, Float32Array]:
    """As an Int8Matrix has it: values (J, K), scales (J,) and the smoothing scales (K,)."""
    weight, inputs = product.weight, product.inputs
    rotation = HadamardRotation.fit(weight, inputs)
    return *quantize_rotated(weight, rotation, inputs), rotation.smoothing


class Int8Products:
    """Stores matrices as int8 and multiplies by them; precision: "int8" or "int8-a16", how finely rows are rounded.

    is_portable: by operators of the ONNX standard only; else by operators of our own.
    """

    def __init__(self, editor: GraphEditor, precision: str, is_portable: bool) -> None:
        self._editor = editor
        self._num_planes = PRECISIONS[precision].num_planes
        self._portable = PortableProducts(editor, self._num_planes) if is_portable else None
        self._hadamards = Hadamards(editor)

    def multiply_stored(self, product: MergedProduct) -> tuple[ir.Value, Int8Matrix]:
        """The product's output (..., J), and its matrix as it is stored.

        That is (J, K), one row of inputs for each output: a lookup or a product reads whole runs of memory.
        """
        name, num_inputs, num_outputs = product.name, product.num_inputs, product.num_outputs
        forms = int8_forms(name, num_outputs, num_inputs)
        values, scales, smoothing = self._editor.matrix(product.parameters, forms, partial(_rounded, product))
        matrix = Int8Matrix(values, scales, smoothing, self._hadamards.value(block_size(num_inputs)))
        if self._portable is not None:
            return self._portable.multiply(product.rows, matrix, product.bias), matrix
        return hadamard_row_linear(self._editor, product.rows, matrix, product.bias, self._num_planes), matrix
