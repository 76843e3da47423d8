"""Small matrices in which a rounding error would do much harm, as where experts are chosen: rows and weights in two
planes of int8.

A row's products are nearly as accurate as in fp32. Their bits are the same whatever stands beside the row, which those
of ONNX Runtime's fp32 products are not.
"""

import numpy as np
import onnx_ir as ir

from reader_edge_export.calibration.moments import InputMoments
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import Int8Matrix, hadamard_row_linear
from reader_edge_export.quantize.hadamard import HadamardRotation, Hadamards, block_size
from reader_edge_export.quantize.int8 import int8_forms, quantize_columns
from reader_edge_export.quantize.linear import MergedProduct
from reader_edge_runtime.arrays import Float32Array, Int8Array


class TwoPlaneProducts:
    """Stores matrices as int8 and what that loses as int8 again, without calibration, and multiplies by them."""

    def __init__(self, editor: GraphEditor, hadamards: Hadamards) -> None:
        self._editor = editor
        self._hadamards = hadamards

    def multiply(self, product: MergedProduct) -> ir.Value:
        """The product's output (..., J)."""
        editor, name, num_inputs, num_outputs = self._editor, product.name, product.num_inputs, product.num_outputs
        forms = int8_forms(name, 2 * num_outputs, num_inputs)
        values, scales, smoothing = editor.matrix(product.parameters, forms, lambda: _rounded(product.weight))
        matrix = Int8Matrix(values, scales, smoothing, self._hadamards.value(block_size(num_inputs)))
        products = hadamard_row_linear(editor, product.rows, matrix, None, num_planes=2)
        rounded, lost = editor.op_multi("Split", [products], 2, {"axis": -1, "num_outputs": 2})
        output = editor.op("Add", [rounded, lost])
        return output if product.bias is None else editor.op("Add", [output, product.bias])


def _rounded(weight: Float32Array) -> tuple[Int8Array, Float32Array, Float32Array]:
    """weight (K, J) as an Int8Matrix of twice the outputs: values (2 J, K), scales (2 J,), smoothing (K,)."""
    rotation = HadamardRotation.fit(weight, InputMoments.none(len(weight)))
    meant = rotation.weight(weight)
    integers, scales = quantize_columns(meant)
    lost, lost_scales = quantize_columns(meant - integers * scales)
    return np.concatenate([integers, lost], axis=1).T, np.concatenate([scales, lost_scales]), rotation.smoothing
