"""int4 weights in blocks of 32 inputs with one scale each, for ONNX Runtime's MatMulNBits."""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor

Float32Array = npt.NDArray[np.float32]
UInt8Array = npt.NDArray[np.uint8]

BLOCK_SIZE = 32
# accuracy_level 4: activations int8 per block of a row, sums int32: row independent, and fast
_FORM = {"bits": 4, "block_size": BLOCK_SIZE, "accuracy_level": 4}
_FACTORS = (8 / 7, 1.0, 0.95, 0.9, 0.85, 0.8)  # with the first, no value lies beyond the range


def multiply_int4(
    editor: GraphEditor, rows: ir.Value, weight: Float32Array, bias: ir.Value | None, name: str
) -> ir.Value:
    """rows (..., K) times weight (K, J), plus the bias (J,) -> (..., J), by MatMulNBits."""
    packed, scales = quantize_blocks(weight)
    inputs = [rows, editor.constant(packed, f"{name}.int4"), editor.constant(scales, f"{name}.scale")]
    attributes = dict(zip("KN", weight.shape, strict=True)) | _FORM
    product = editor.op("MatMulNBits", inputs, attributes, domain="com.microsoft")
    return product if bias is None else editor.op("Add", [product, bias])


def quantize_blocks(weight: Float32Array) -> tuple[UInt8Array, Float32Array]:
    """weight (K, J) -> packed uint8 (J, blocks, 16) and scales (J, blocks); value = scale * (nibble - 8).

    Nibbles run from 0 to 15, two a byte, the first in the low half. The block's extreme value takes the nibble 0, as
    in llama.cpp's Q4_0, since the range reaches one step further there; of that scale, shorter ones, and the one whose
    range holds the extreme with either sign, the block keeps the one with the least squared error.
    """
    num_inputs, num_outputs = weight.shape
    num_blocks = -(-num_inputs // BLOCK_SIZE)
    padded = np.zeros((num_outputs, num_blocks * BLOCK_SIZE), np.float32)
    padded[:, :num_inputs] = weight.T
    blocks = padded.reshape(num_outputs, num_blocks, BLOCK_SIZE)
    scales = _best_scales(blocks)
    nibbles = _nibbles(blocks, scales)
    packed = nibbles[..., 0::2] | np.left_shift(nibbles[..., 1::2], np.uint8(4))
    return packed.astype(np.uint8), scales


def _best_scales(blocks: Float32Array) -> Float32Array:
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)[..., 0]
    full = extreme / np.float32(-8)
    full[full == 0] = 1
    best = full
    least = np.full(full.shape, np.inf, np.float32)
    for factor in _FACTORS:
        scales = (full * np.float32(factor)).astype(np.float32)
        restored = (_nibbles(blocks, scales).astype(np.float32) - 8) * scales[..., None]
        error = np.square(restored - blocks).sum(axis=2)
        best = np.where(error < least, scales, best)
        least = np.minimum(error, least)
    return best.astype(np.float32)


def _nibbles(blocks: Float32Array, scales: Float32Array) -> UInt8Array:
    nibbles: UInt8Array = np.clip(np.rint(blocks / scales[..., None]) + 8, 0, 15).astype(np.uint8)
    return nibbles
