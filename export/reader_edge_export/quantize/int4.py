"""int4 weights in blocks of 32 inputs, each with a scale of its own: an integer, times one number for the output."""

from collections.abc import Set
from functools import partial

import numpy as np
import onnx_ir as ir
import torch

from reader_edge_export.calibration.calibration import InputMoments
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.shared_constants import BLOCK_INPUTS, MAX_BLOCK_SCALE
from reader_edge_export.onnx_graph.weight_file import TensorSpec
from reader_edge_export.operators.definitions import Int8Matrix
from reader_edge_export.operators.hadamard_linear import MAX_INPUTS, BlockMatrix, hadamard_block_linear
from reader_edge_export.quantize.compensation import BLOCK, Compensation, for_parts_of_outputs
from reader_edge_export.quantize.hadamard import HadamardRotation, Hadamards, block_size
from reader_edge_export.quantize.int8 import Int8Products
from reader_edge_export.quantize.linear import MergedProduct
from reader_edge_runtime.arrays import Float32Array, Int8Array, UInt8Array

assert BLOCK == BLOCK_INPUTS  # rounding asks for the steps of one block at a time

_FACTORS = (8 / 7, 1.0, 0.95, 0.9, 0.85, 0.8)  # with the first, no value lies beyond the range
_LOWEST, _HIGHEST = -8, 7
_DAMPING = 0.2  # large errors lean on moments harder than those of int8 do


class Int4Products:
    """Stores matrices as int4 and multiplies by them.

    int8: for those with too many inputs for exact sums, and for those whose names are among `in_eight_bits`.
    """

    def __init__(self, editor: GraphEditor, int8: Int8Products, in_eight_bits: Set[str]) -> None:
        self._editor = editor
        self._int8 = int8
        self._in_eight_bits = in_eight_bits
        self._hadamards = Hadamards(editor)

    def multiply_stored(self, product: MergedProduct) -> tuple[ir.Value, BlockMatrix | Int8Matrix]:
        """The product's output (..., J), and its matrix as it is stored."""
        if product.num_inputs > MAX_INPUTS or product.parts[0].name in self._in_eight_bits:
            return self._int8.multiply_stored(product)
        name, num_inputs, num_outputs = product.name, product.num_inputs, product.num_outputs
        specs = int4_specs(name, num_outputs, num_inputs)
        values, block_scales, scales, smoothing = self._editor.matrix(
            product.parameters, specs, partial(_rounded, product)
        )
        hadamard = self._hadamards.value(block_size(num_inputs))
        matrix = BlockMatrix(values, block_scales, scales, smoothing, hadamard)
        return hadamard_block_linear(self._editor, product.rows, matrix, product.bias), matrix


def int4_specs(name: str, *sizes: int) -> list[TensorSpec]:
    """Values, both kinds of scales and smoothing scales of a BlockMatrix, (J, K) or of experts (X, J, K)."""
    *leading, num_outputs, num_inputs = sizes
    num_blocks = -(-num_inputs // BLOCK)
    return [
        TensorSpec.of(f"{name}.int4", np.uint8, *leading, num_outputs, num_blocks, BLOCK // 2),
        TensorSpec.of(f"{name}.block_scale", np.int8, *leading, num_outputs, num_blocks),
        TensorSpec.of(f"{name}.scale", np.float32, *leading, num_outputs),
        TensorSpec.of(f"{name}.smoothing", np.float32, *leading, num_inputs),
    ]


def _rounded(product: MergedProduct) -> tuple[UInt8Array, Int8Array, Float32Array, Float32Array]:
    """As a BlockMatrix has it: values, block scales and scales, and the smoothing scales (K,)."""
    weight, inputs = product.weight, product.inputs
    rotation = HadamardRotation.fit(weight, inputs)
    return *quantize_blocks(weight, rotation, inputs), rotation.smoothing


def quantize_blocks(
    weight: Float32Array, rotation: HadamardRotation, inputs: InputMoments
) -> tuple[UInt8Array, Int8Array, Float32Array]:
    """weight (K, J) -> its rotated form, errors made up for, as a BlockMatrix has it.

    That is values (J, blocks, 16), block scales (J, blocks) and scales (J,).
    """
    num_inputs, num_outputs = weight.shape
    num_blocks = -(-num_inputs // BLOCK)
    halves = np.full((num_outputs, num_blocks * BLOCK), -_LOWEST, np.uint8)
    block_scales = np.empty((num_outputs, num_blocks), np.int8)
    scales = np.empty(num_outputs, np.float32)
    compensation = Compensation(rotation.moments(inputs), _DAMPING)

    def round_part(outputs: slice) -> None:
        part = rotation.weight(weight[:, outputs])
        units = _units(torch.from_numpy(part))
        integers, steps = compensation.round(part, partial(_best_steps, units), _LOWEST, _HIGHEST)
        halves[outputs, :num_inputs] = integers.T - _LOWEST
        block_scales[outputs] = np.rint(steps / units.numpy()).T
        scales[outputs] = units

    for_parts_of_outputs(num_outputs, round_part)
    halves = halves.reshape(num_outputs, num_blocks, BLOCK)
    return np.bitwise_or(halves[..., 0::2], np.left_shift(halves[..., 1::2], np.uint8(4))), block_scales, scales


def _units(weight: torch.Tensor) -> torch.Tensor:
    """Of weights (K, J), what block scales count, (J,): the largest of them holds every block of the output."""
    longest = torch.stack([_holding_step(block) for block in weight.split(BLOCK)]).amax(dim=0)
    longest[longest == 0] = 1
    return longest / MAX_BLOCK_SCALE


def _holding_step(block: torch.Tensor) -> torch.Tensor:
    """The shortest step of each output whose range, with either sign, holds a block (k, J): (J,)."""
    above, below = block.amax(dim=0).clamp_(min=0), block.neg().amax(dim=0).clamp_(min=0)
    signed = [torch.maximum(one / _HIGHEST, other / -_LOWEST) for one, other in ((above, below), (below, above))]
    return torch.minimum(*signed)


def _best_steps(units: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Of weights (k, J), the step of each output (J,), a multiple of its unit.

    The block's extreme value takes the number -8, as in llama.cpp's Q4_0, since the range reaches one step further
    there; of that step, shorter ones, and the one whose range holds the extreme with either sign, the block keeps the
    one with the least squared error.
    """
    above, below = block.amax(dim=0), block.amin(dim=0)
    full = torch.where(above > -below, above, below) / _LOWEST / units
    best, least = torch.empty_like(full), torch.full_like(full, torch.inf)
    for factor in _FACTORS:
        multiples = (full * factor).round_().clamp_(-MAX_BLOCK_SCALE, MAX_BLOCK_SCALE)
        multiples[multiples == 0] = 1
        steps = multiples * units
        rounded = (block / steps).round_().clamp_(_LOWEST, _HIGHEST) * steps
        error = (rounded - block).square_().sum(dim=0)
        best = torch.where(error < least, steps, best)
        least = torch.minimum(error, least)
    return best
