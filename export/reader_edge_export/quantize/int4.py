"""int4 weights in blocks of 32 inputs with one scale each, for ONNX Runtime's MatMulNBits."""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from reader_edge_export.calibration import InputMoments
from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.operators import spread_rows
from reader_edge_export.quantize.compensation import BLOCK, Compensation, parts_of_outputs
from reader_edge_export.quantize.linear import MergedProduct
from reader_edge_export.quantize.spread import Spread, Spreading

Float32Array = npt.NDArray[np.float32]
UInt8Array = npt.NDArray[np.uint8]

# accuracy_level 4: activations int8 per block of a row, sums int32: row independent, and fast
_FORM = {"bits": 4, "block_size": BLOCK, "accuracy_level": 4}
_FACTORS = (8 / 7, 1.0, 0.95, 0.9, 0.85, 0.8)  # with the first, no value lies beyond the range
_LOWEST, _HIGHEST = -8, 7


class Int4Products:
    """Stores matrices as int4 and multiplies by them."""

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._spreading = Spreading(editor)

    def multiply(self, product: MergedProduct) -> ir.Value:
        """The product's output (..., J), by MatMulNBits."""
        editor, name = self._editor, product.name
        spread = Spread.fit(product.weight, product.inputs)
        packed, scales = quantize_blocks(product.weight, spread, product.inputs)
        rows = spread_rows(editor, product.rows, *self._spreading.constants(spread, name))
        inputs = [rows, editor.constant(packed, f"{name}.int4"), editor.constant(scales, f"{name}.scale")]
        attributes = dict(zip("KN", product.weight.shape, strict=True)) | _FORM
        output = editor.op("MatMulNBits", inputs, attributes, domain="com.microsoft")
        return output if product.bias is None else editor.op("Add", [output, product.bias])


def quantize_blocks(weight: Float32Array, spread: Spread, inputs: InputMoments) -> tuple[UInt8Array, Float32Array]:
    """weight (K, J) -> its spread form, errors made up for: packed uint8 (J, blocks, 16), scales (J, blocks).

    value = scale * (nibble - 8). Nibbles run from 0 to 15, two a byte, the first in the low half.
    """
    num_inputs, num_outputs = weight.shape
    num_blocks = -(-num_inputs // BLOCK)
    nibbles = np.full((num_outputs, num_blocks * BLOCK), -_LOWEST, np.uint8)
    scales = np.empty((num_outputs, num_blocks), np.float32)
    compensation = Compensation(spread.moments(inputs))
    for outputs in parts_of_outputs(num_outputs):
        part = spread.weight(weight[:, outputs])
        integers, steps = compensation.round(part, _best_scales, _LOWEST, _HIGHEST)
        nibbles[outputs, :num_inputs] = integers.T - _LOWEST
        scales[outputs] = steps.T
    nibbles = nibbles.reshape(num_outputs, num_blocks, BLOCK)
    return np.bitwise_or(nibbles[..., 0::2], np.left_shift(nibbles[..., 1::2], np.uint8(4))), scales


def _best_scales(block: torch.Tensor) -> torch.Tensor:
    """Of weights (k, J), the scale of each output (J,).

    The block's extreme value takes the nibble 0, as in llama.cpp's Q4_0, since the range reaches one step further
    there; of that scale, shorter ones, and the one whose range holds the extreme with either sign, the block keeps the
    one with the least squared error.
    """
    full = block.gather(0, block.abs().argmax(dim=0, keepdim=True))[0] / _LOWEST
    full[full == 0] = 1
    best, least = full, torch.full_like(full, torch.inf)
    for factor in _FACTORS:
        scales = full * factor
        rounded = (block / scales).round_().clamp_(_LOWEST, _HIGHEST) * scales
        error = (rounded - block).square_().sum(dim=0)
        best = torch.where(error < least, scales, best)
        least = torch.minimum(error, least)
    return best
