"""The operator SpreadBlockLinear: rows, rotated by a Hadamard matrix and rounded, times a 4-bit matrix in blocks.

A weight is scale_j * block_scale_jb * (half - 8): one number in fp32 for an output and one small integer for a block of
it, so that a row's whole sum is one integer, the same in any order.
"""

from dataclasses import dataclass

import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor, constant_shape
from reader_edge_export.onnx_graph.shared_constants import BLOCK_INPUTS, MAX_BLOCK_SCALE
from reader_edge_export.operators.block_definitions import CODES_4
from reader_edge_export.operators.definitions import HADAMARD_ROWS, HADAMARD_STEPS, OPERATOR_DOMAIN, define

MAX_INPUTS = 2**24 // (8 * 8 * MAX_BLOCK_SCALE)

# values (J, blocks, 16): two inputs a byte, the first in its low half, counted from -8 on; what is beyond K counts for
# nothing. block_scales (J, blocks), scales (J,). Rows are rounded as by SpreadRowLinear and cut into 16 * high + low,
# at most 8 each: their sums are exact in fp32 up to MAX_INPUTS, so that the product in fp32 has the bits of integers.
HADAMARD_BLOCK_LINEAR = """
<domain: "reader_edge", opset_import: ["" : 24, "com.microsoft" : 1, "reader_edge" : 1]>
SpreadBlockLinear <K, N> (rows, smoothing, hadamard, values, block_scales, scales) => (output)
{
  most = Constant <value_float = 127.0> ()
  base = Constant <value_float = 16.0> ()
  inverse = Constant <value_float = 0.0625> ()
  block_numbers = Cast <to = 1> (block_scales)
  scales_of_one = Div (scales, most)

  in_steps, top = reader_edge.SpreadSteps (rows, smoothing, hadamard, most)
  steps = Round (in_steps)
  parts = Mul (steps, inverse)
  high = Round (parts)
  high_steps = Mul (high, base)
  low = Sub (steps, high_steps)
  planes = Concat <axis = 0> (high, low)
  sums = com.microsoft.MatMulNBits <K : int = @K, N : int = @N, bits = 4, block_size = 32, accuracy_level = 1>
    (planes, values, block_numbers)
  high_sum, low_sum = Split <axis = 0, num_outputs = 2> (sums)
  high_product = Mul (high_sum, base)
  sum = Add (high_product, low_sum)
  product = Mul (sum, scales_of_one)
  output = Mul (product, top)
}
"""

_BIAS = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
SpreadBlockLinearBias <K, N> (rows, smoothing, hadamard, values, block_scales, scales, bias) => (output)
{
  product = reader_edge.SpreadBlockLinear <K : int = @K, N : int = @N>
    (rows, smoothing, hadamard, values, block_scales, scales)
  output = Add (bias, product)
}
"""


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A stored matrix in four bits: values uint8 (J, blocks, 16), block_scales int8 (J, blocks), scales (J,).

    smoothing (K,), hadamard (b, b): how rows (..., K) are rotated before they meet it.
    """

    values: ir.Value
    block_scales: ir.Value
    scales: ir.Value
    smoothing: ir.Value
    hadamard: ir.Value


def hadamard_block_linear(editor: GraphEditor, rows: ir.Value, matrix: BlockMatrix, bias: ir.Value | None) -> ir.Value:
    """rows (..., K), in int8, times the matrix, plus the bias (J,) -> (..., J)."""
    define(editor, HADAMARD_ROWS, HADAMARD_STEPS, HADAMARD_BLOCK_LINEAR)
    inputs = [rows, matrix.smoothing, matrix.hadamard, matrix.values, matrix.block_scales, matrix.scales]
    sizes = {"K": constant_shape(matrix.smoothing)[0], "N": constant_shape(matrix.scales)[0]}
    if bias is None:
        return editor.op("SpreadBlockLinear", inputs, sizes, domain=OPERATOR_DOMAIN)
    define(editor, _BIAS)
    return editor.op("SpreadBlockLinearBias", [*inputs, bias], sizes, domain=OPERATOR_DOMAIN)


def block_rows(editor: GraphEditor, matrix: BlockMatrix, indices: ir.Value) -> ir.Value:
    """Rows (B, N, K) of the matrix (J, K), those at `indices` (B, N), rotated as it is stored: integers in fp32."""
    define(editor, CODES_4)
    blocks = editor.op("Gather", [matrix.values, indices], dtype=ir.DataType.UINT8)
    halves = editor.op("Codes4", [blocks], domain=OPERATOR_DOMAIN, dtype=ir.DataType.UINT8)
    levels = editor.op("Sub", [editor.cast(halves, ir.DataType.FLOAT), editor.scalar(8.0)])
    scales = editor.op("Gather", [matrix.block_scales, indices], dtype=ir.DataType.INT8)
    steps = editor.op("Unsqueeze", [editor.cast(scales, ir.DataType.FLOAT), editor.int64s(-1)])
    width, num_blocks = constant_shape(matrix.smoothing)[0], constant_shape(matrix.block_scales)[1]
    padded = editor.op("Reshape", [editor.op("Mul", [levels, steps]), editor.int64s(0, 0, num_blocks * BLOCK_INPUTS)])
    if width == num_blocks * BLOCK_INPUTS:
        return padded
    return editor.op("Slice", [padded, editor.int64s(0), editor.int64s(width), editor.int64s(-1)])
