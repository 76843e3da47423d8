"""The operator SpreadBlockLinear: rows times a 4-bit matrix in blocks of inputs, defined as those in `operators` are.

A weight is scale_j * block_scale_jb * (half - 8): one number in fp32 for an output and one integer for a block of it.
So a row's whole sum is one integer, the same in any order. It fits 32 bits while the magnitudes of an output's block
scales add up to MAX_TOTAL_SCALE at most.
"""

from dataclasses import dataclass

import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.operators import OPERATOR_DOMAIN, SPREAD_ROWS, define

BLOCK_INPUTS = 32
MAX_TOTAL_SCALE = (2**31 - 1) // (BLOCK_INPUTS * 127 * 8)

# values (J, blocks, 16): byte i of a block holds input i in its low half and input 16 + i in its high one, both counted
# from -8 on; what is beyond K is not read. block_scales (J, blocks), scales (J,). The integers of the weights have
# eleven bits; they are multiplied in two planes, 32 * upper + lower.
_SPREAD_BLOCK_LINEAR = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
SpreadBlockLinear (rows, stretch, hadamard, values, block_scales, scales) => (output)
{
  last = Constant <value_ints = [-1]> ()
  begin = Constant <value_ints = [0]> ()
  second = Constant <value_ints = [1]> ()
  flat_sizes = Constant <value_ints = [0, -1]> ()
  low_half = Constant <value = uint8 {15}> ()
  four = Constant <value = uint8 {4}> ()
  eight = Constant <value_float = 8.0> ()
  base = Constant <value_float = 32.0> ()
  integer_base = Constant <value = int32 {32}> ()
  inverse = Constant <value_float = 0.03125> ()
  one = Constant <value_float = 1.0> ()
  smallest = Constant <value_float = 1e-30> ()
  most = Constant <value_float = 127.0> ()
  zero_point = Constant <value = uint8 {128}> ()

  low = BitwiseAnd (values, low_half)
  high = BitShift <direction = "RIGHT"> (values, four)
  halves = Concat <axis = -1> (low, high)
  numbers = Cast <to = 1> (halves)
  centred = Sub (numbers, eight)
  block_numbers = Cast <to = 1> (block_scales)
  factors = Unsqueeze (block_numbers, last)
  blocks = Mul (centred, factors)
  filled = Reshape (blocks, flat_sizes)
  num_inputs = Shape (stretch)
  weight = Slice (filled, begin, num_inputs, second)
  parts = Mul (weight, inverse)
  upper = Round (parts)
  upper_steps = Mul (upper, base)
  lower = Sub (weight, upper_steps)
  planes = Concat <axis = 0> (upper, lower)
  bytes = Cast <to = 3> (planes)
  columns = Transpose <perm = [1, 0]> (bytes)
  scales_of_one = Div (scales, most)

  spread = reader_edge.SpreadRows (rows, stretch, hadamard)
  magnitudes = Abs (spread)
  largest = ReduceMax <keepdims = 1> (magnitudes, last)
  top = Max (largest, smallest)
  steps_of_one = Div (most, top)
  in_steps = Mul (spread, steps_of_one)
  quantized = QuantizeLinear (in_steps, one, zero_point)
  products = MatMulInteger (quantized, columns, zero_point)
  upper_product, lower_product = Split <axis = -1, num_outputs = 2> (products)
  upper_sum = Mul (upper_product, integer_base)
  sum = Add (upper_sum, lower_product)
  number = Cast <to = 1> (sum)
  product = Mul (number, scales_of_one)
  output = Mul (product, top)
}
"""

_BIAS = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
SpreadBlockLinearBias (rows, stretch, hadamard, values, block_scales, scales, bias) => (output)
{
  product = reader_edge.SpreadBlockLinear (rows, stretch, hadamard, values, block_scales, scales)
  output = Add (bias, product)
}
"""


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A stored matrix in four bits: values uint8 (J, blocks, 16), block_scales int8 (J, blocks), scales (J,).

    stretch (K,), hadamard (b, b): how rows (..., K) are spread before they meet it.
    """

    values: ir.Value
    block_scales: ir.Value
    scales: ir.Value
    stretch: ir.Value
    hadamard: ir.Value


def spread_block_linear(editor: GraphEditor, rows: ir.Value, matrix: BlockMatrix, bias: ir.Value | None) -> ir.Value:
    """rows (..., K), in int8, times the matrix, plus the bias (J,) -> (..., J)."""
    define(editor, SPREAD_ROWS, _SPREAD_BLOCK_LINEAR)
    inputs = [rows, matrix.stretch, matrix.hadamard, matrix.values, matrix.block_scales, matrix.scales]
    if bias is None:
        return editor.op("SpreadBlockLinear", inputs, domain=OPERATOR_DOMAIN)
    define(editor, _BIAS)
    return editor.op("SpreadBlockLinearBias", [*inputs, bias], domain=OPERATOR_DOMAIN)
