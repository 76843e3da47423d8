"""int8 weights with a scale per output; int8 activations with a scale per row, of a high and a low part for 16 bits.

ONNX Runtime's own dynamic quantisation scales activations per tensor, so that a node's logits depend on its
neighbours; here each row has its own scale, and integer sums are the same in any order.
"""

from functools import partial

import numpy as np
import onnx_ir as ir
import torch

from reader_edge_export.calibration.calibration import InputMoments
from reader_edge_export.onnx_graph.graph_editor import GraphEditor, constant_shape
from reader_edge_export.onnx_graph.shared_constants import BASE, SMALLEST, STEPS, STEPS_16, ZERO_POINT
from reader_edge_export.onnx_graph.weight_file import TensorSpec
from reader_edge_export.operators.definitions import Int8Matrix, hadamard_row_linear
from reader_edge_export.quantize.compensation import Compensation, for_parts_of_outputs
from reader_edge_export.quantize.hadamard import HadamardRotation, Hadamards, block_size
from reader_edge_export.quantize.linear import MergedProduct
from reader_edge_runtime.arrays import Float32Array, Int8Array

_PLANE_STEPS = {1: STEPS, 2: STEPS_16}


class PortableProducts:
    """Products by operators of the ONNX standard alone: what `operators/definitions.py` defines, spelled out.

    num_planes: of int8 that a row is rounded to, one or two.
    """

    def __init__(self, editor: GraphEditor, num_planes: int) -> None:
        self._editor = editor
        self._num_planes = num_planes
        self._shapes: dict[tuple[object, ...], ir.Value] = {}

    def multiply(self, rows: ir.Value, matrix: Int8Matrix, bias: ir.Value | None) -> ir.Value:
        """rows (..., K) times the transpose of the matrix (J, K), plus the bias (J,) -> (..., J)."""
        editor = self._editor
        num_outputs, num_inputs = constant_shape(matrix.values)
        is_flat = rows.shape is not None and len(rows.shape) == 2
        rotation = self._rotation(rows, matrix, num_inputs)
        most = editor.scalar(_PLANE_STEPS[self._num_planes])
        top = editor.op("Max", [self._largest(rotation), editor.scalar(SMALLEST)])
        in_steps = editor.op("Mul", [rotation, editor.op("Div", [most, top])])
        scales = editor.op("Div", [matrix.scales, most])
        product = (self._product if self._num_planes == 1 else self._product_16)(in_steps, matrix.values, scales)
        result = editor.op("Mul", [product, top])
        if not is_flat:
            result = editor.op("Reshape", [result, self._shape_like(rows, num_outputs)])
        return result if bias is None else editor.op("Add", [result, bias])

    def _rotation(self, rows: ir.Value, matrix: Int8Matrix, num_inputs: int) -> ir.Value:
        """rows (..., K) -> (R, K), rotated."""
        editor, block = self._editor, constant_shape(matrix.hadamard)[0]
        smoothed = editor.op("Mul", [rows, matrix.smoothing])
        flat = editor.op("Reshape", [smoothed, editor.int64s(-1, num_inputs)])
        height = editor.op("Mul", [self._largest(flat), editor.scalar(2 * block)])
        rounded = editor.op("Sub", [editor.op("Add", [flat, height]), height])
        blocks = editor.op("Reshape", [rounded, editor.int64s(-1, block)])
        return editor.op("Reshape", [editor.op("MatMul", [blocks, matrix.hadamard]), editor.int64s(-1, num_inputs)])

    def _largest(self, flat: ir.Value) -> ir.Value:
        """The largest magnitude of each row (R, K): (R, 1)."""
        editor = self._editor
        return editor.op("ReduceMax", [editor.op("Abs", [flat]), editor.int64s(1)], {"keepdims": 1})

    def _product(self, in_steps: ir.Value, values: ir.Value, scales: ir.Value) -> ir.Value:
        """Rows (R, K), at most 127 steps, times the transpose of int8 values (J, K), times scales (J,): (R, J)."""
        editor = self._editor
        zero_point = editor.constant(np.array(ZERO_POINT, np.uint8), "zero_point")
        rounded = editor.op("QuantizeLinear", [in_steps, editor.scalar(1), zero_point], dtype=ir.DataType.UINT8)
        inputs = [rounded, editor.transpose(values, 1, 0), zero_point]
        product = editor.op("MatMulInteger", inputs, dtype=ir.DataType.INT32)
        return editor.op("Mul", [editor.cast(product, ir.DataType.FLOAT), scales])

    def _product_16(self, in_steps: ir.Value, values: ir.Value, scales: ir.Value) -> ir.Value:
        """The same of rows of at most 32639 steps, as two planes in one product."""
        editor = self._editor
        steps, base = editor.op("Round", [in_steps]), editor.scalar(BASE)
        raised = editor.op("Add", [steps, editor.scalar(ZERO_POINT)])
        high = editor.op("Floor", [editor.op("Mul", [raised, editor.scalar(1 / BASE)])])
        low = editor.op("Sub", [steps, editor.op("Mul", [high, base])])
        products = self._product(editor.op("Concat", [high, low], {"axis": 0}), values, scales)
        halves = editor.op_multi("Split", [products], 2, {"axis": 0, "num_outputs": 2})
        return editor.op("Add", [editor.op("Mul", [halves[0], base]), halves[1]])

    def _shape_like(self, rows: ir.Value, width: int) -> ir.Value:
        editor = self._editor
        key = (*_leading_sizes(rows), width)
        if key not in self._shapes:
            leading = editor.op("Shape", [rows], {"start": 0, "end": -1}, dtype=ir.DataType.INT64)
            sizes = [leading, editor.int64s(width)]
            self._shapes[key] = editor.op("Concat", sizes, {"axis": 0}, dtype=ir.DataType.INT64)
        return self._shapes[key]


def _leading_sizes(rows: ir.Value) -> tuple[object, ...]:
    """What identifies the sizes before the last: their names where all are known, else the value itself."""
    sizes = [] if rows.shape is None else [getattr(size, "value", size) for size in rows.shape][:-1]
    return tuple(sizes) if sizes and None not in sizes else (rows,)


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


def int8_specs(name: str, *sizes: int) -> list[TensorSpec]:
    """Values, scales and smoothing scales of an Int8Matrix of these sizes, (J, K) or of experts (X, J, K)."""
    *leading, num_outputs, num_inputs = sizes
    return [
        TensorSpec.of(f"{name}.int8", np.int8, *sizes),
        TensorSpec.of(f"{name}.scale", np.float32, *leading, num_outputs),
        TensorSpec.of(f"{name}.smoothing", np.float32, *leading, num_inputs),
    ]


def _rounded(product: MergedProduct) -> tuple[Int8Array, Float32Array, Float32Array]:
    """As an Int8Matrix has it: values (J, K), scales (J,) and the smoothing scales (K,)."""
    weight, inputs = product.weight, product.inputs
    rotation = HadamardRotation.fit(weight, inputs)
    return *quantize_rotated(weight, rotation, inputs), rotation.smoothing


class Int8Products:
    """Stores matrices as int8 and multiplies by them; num_planes: how finely rows are rounded, as in `Precision`.

    is_portable: by operators of the ONNX standard only; else by operators of our own.
    """

    def __init__(self, editor: GraphEditor, num_planes: int, is_portable: bool) -> None:
        self._editor = editor
        self._num_planes = num_planes
        self._portable = PortableProducts(editor, num_planes) if is_portable else None
        self._hadamards = Hadamards(editor)

    def multiply_stored(self, product: MergedProduct) -> tuple[ir.Value, Int8Matrix]:
        """The product's output (..., J), and its matrix as it is stored.

        That is (J, K), one row of inputs for each output: a lookup or a product reads whole runs of memory.
        """
        name, num_inputs, num_outputs = product.name, product.num_inputs, product.num_outputs
        specs = int8_specs(name, num_outputs, num_inputs)
        values, scales, smoothing = self._editor.matrix(product.parameters, specs, partial(_rounded, product))
        matrix = Int8Matrix(values, scales, smoothing, self._hadamards.value(block_size(num_inputs)))
        if self._portable is not None:
            return self._portable.multiply(product.rows, matrix, product.bias), matrix
        return hadamard_row_linear(self._editor, product.rows, matrix, product.bias, self._num_planes), matrix


class TwoPlaneProducts:
    """Small matrices in which a rounding error would do much harm, as where experts are chosen.

    They are stored as int8 and what that loses as int8 again, without calibration. A row's products are nearly as
    accurate as in fp32, and have the same bits whatever stands beside it, which ONNX Runtime's fp32 products have not.
    """

    def __init__(self, editor: GraphEditor, hadamards: Hadamards) -> None:
        self._editor = editor
        self._hadamards = hadamards

    def multiply(self, product: MergedProduct) -> ir.Value:
        """The product's output (..., J)."""
        editor, name, num_inputs, num_outputs = self._editor, product.name, product.num_inputs, product.num_outputs
        specs = int8_specs(name, 2 * num_outputs, num_inputs)
        values, scales, smoothing = editor.matrix(product.parameters, specs, lambda: _two_planes(product.weight))
        matrix = Int8Matrix(values, scales, smoothing, self._hadamards.value(block_size(num_inputs)))
        products = hadamard_row_linear(editor, product.rows, matrix, None, num_planes=2)
        rounded, lost = editor.op_multi("Split", [products], 2, {"axis": -1, "num_outputs": 2})
        output = editor.op("Add", [rounded, lost])
        return output if product.bias is None else editor.op("Add", [output, product.bias])


def _two_planes(weight: Float32Array) -> tuple[Int8Array, Float32Array, Float32Array]:
    """weight (K, J) as an Int8Matrix of twice the outputs: values (2 J, K), scales (2 J,), smoothing (K,)."""
    rotation = HadamardRotation.fit(weight, InputMoments.none(len(weight)))
    meant = rotation.weight(weight)
    integers, scales = quantize_columns(meant)
    lost, lost_scales = quantize_columns(meant - integers * scales)
    return np.concatenate([integers, lost], axis=1).T, np.concatenate([scales, lost_scales]), rotation.smoothing
