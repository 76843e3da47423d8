"""The operator SpreadBlockLinear: rows times a 4-bit matrix in blocks of inputs, defined as those in `operators` are.

A weight is scale_j * block_scale_jb * (half - 8): one number in fp32 for an output and one small integer for a block of
it. Their product is an int8 matrix, so that a row's whole sum is one integer, the same in any order.
"""

from dataclasses import dataclass

import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.operators import OPERATOR_DOMAIN, SPREAD_ROW_LINEAR, SPREAD_ROWS, define

BLOCK_INPUTS = 32
MAX_BLOCK_SCALE = 15  # of either sign, times -8 to 7

# values (J, blocks, 16): byte i of a block holds input i in its low half and input 16 + i in its high one, both counted
# from -8 on; what is beyond K is not read. block_scales (J, blocks), scales (J,).
_SPREAD_BLOCK_LINEAR = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
SpreadBlockLinear (rows, stretch, hadamard, values, block_scales, scales) => (output)
{
  begin = Constant <value_ints = [0]> ()
  axis = Constant <value_ints = [1]> ()
  last = Constant <value_ints = [-1]> ()
  sizes = Constant <value_ints = [0, -1]> ()
  low_half = Constant <value = uint8 {15}> ()
  four = Constant <value = uint8 {4}> ()
  eight = Constant <value_float = 8.0> ()

  low = BitwiseAnd (values, low_half)
  high = BitShift <direction = "RIGHT"> (values, four)
  halves = Concat <axis = -1> (low, high)
  numbers = Cast <to = 1> (halves)
  centred = Sub (numbers, eight)
  block_numbers = Cast <to = 1> (block_scales)
  factors = Unsqueeze (block_numbers, last)
  blocks = Mul (centred, factors)
  filled = Reshape (blocks, sizes)
  num_inputs = Shape (stretch)
  integers = Slice (filled, begin, num_inputs, axis)
  weight = Cast <to = 3> (integers)
  output = reader_edge.SpreadRowLinear (rows, stretch, hadamard, weight, scales)
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
    define(editor, SPREAD_ROWS, SPREAD_ROW_LINEAR, _SPREAD_BLOCK_LINEAR)
    inputs = [rows, matrix.stretch, matrix.hadamard, matrix.values, matrix.block_scales, matrix.scales]
    if bias is None:
        return editor.op("SpreadBlockLinear", inputs, domain=OPERATOR_DOMAIN)
    define(editor, _BIAS)
    return editor.op("SpreadBlockLinearBias", [*inputs, bias], domain=OPERATOR_DOMAIN)
