"""The operators Q4_0Linear to Q6_KLinear: rows times a matrix in the blocks of a GGUF file, which stay as they are.

Rows are rounded to int8 in blocks too, as llama.cpp does it, since a matrix that stays cannot take a spreading back: a
scale for a whole row would cost 0.035 nats on the model of docs/quantisation.md. A block's sum is an integer, exact in
any order; the blocks' scales are numbers in fp16, which no common unit holds, so blocks are combined in fp32. ONNX
Runtime's MatMulNBits has an order for that, the native kernels another: each gives a row the same bits at every width,
but the last bits of one are not the other's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from reader_edge_export.block_types import Blocks, BlockType
from reader_edge_export.graph_editor import GraphEditor
from reader_edge_export.operators import OPERATOR_DOMAIN, define

# values (..., bytes), two codes a byte -> (..., n)
_CODES_4 = """
<domain: "reader_edge", opset_import: ["" : 24]>
Codes4 (values) => (codes)
{
  last = Constant <value_ints = [-1]> ()
  four = Constant <value = uint8 {4}> ()
  mask = Constant <value = uint8 {15}> ()
  leading = Shape <start = 0, end = -1> (values)
  sizes = Concat <axis = 0> (leading, last)

  low = BitwiseAnd (values, mask)
  high = BitShift <direction = "RIGHT"> (values, four)
  lows = Unsqueeze (low, last)
  highs = Unsqueeze (high, last)
  pairs = Concat <axis = -1> (lows, highs)
  codes = Reshape (pairs, sizes)
}
"""

# The same with one or two bits more, from highs (..., bytes).
_CODES_HIGH = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
Codes{bits} (values, highs) => (codes)
{{
  last = Constant <value_ints = [-1]> ()
  four = Constant <value = uint8 {{4}}> ()
  mask = Constant <value = uint8 {{{mask}}}> ()
  shifts = Constant <value = uint8[{count}] {{{shifts}}}> ()

  low = reader_edge.Codes4 (values)
  sizes = Shape (low)
  packed = Unsqueeze (highs, last)
  shifted = BitShift <direction = "RIGHT"> (packed, shifts)
  bits = BitwiseAnd (shifted, mask)
  raised = BitShift <direction = "LEFT"> (bits, four)
  high = Reshape (raised, sizes)
  codes = BitwiseOr (low, high)
}}
"""

# numbers (..., blocks / s) times the codes (..., blocks) of s blocks each -> (..., blocks)
_SHARED_NUMBERS = """
<domain: "reader_edge", opset_import: ["" : 24]>
SharedNumbers (numbers, codes) => (products)
{
  last = Constant <value_ints = [-1]> ()
  outer = Shape (numbers)
  inner = Shape (codes)
  sizes = Concat <axis = 0> (outer, last)

  number = Cast <to = 1> (numbers)
  integer = Cast <to = 1> (codes)
  shared = Reshape (integer, sizes)
  each = Unsqueeze (number, last)
  multiplied = Mul (shared, each)
  products = Reshape (multiplied, inner)
}
"""

# rows (..., K) in blocks of `sizes` (-1, n) -> the same rounded, whole numbers of steps (blocks, n), at most 127 either
# way, and the step of each block (blocks, 1).
_ROUNDED_BLOCKS = """
<domain: "reader_edge", opset_import: ["" : 24]>
RoundedBlocks (rows, sizes) => (rounded, steps, step)
{
  last = Constant <value_ints = [-1]> ()
  most = Constant <value_float = 127.0> ()
  smallest = Constant <value_float = 1e-30> ()
  whole = Shape (rows)

  blocks = Reshape (rows, sizes)
  magnitudes = Abs (blocks)
  largest = ReduceMax <keepdims = 1> (magnitudes, last)
  top = Max (largest, smallest)
  steps_of_one = Div (most, top)
  in_steps = Mul (blocks, steps_of_one)
  steps = Round (in_steps)
  step = Div (top, most)
  rounded_blocks = Mul (steps, step)
  rounded = Reshape (rounded_blocks, whole)
}
"""

# MatMulNBits rounds its rows once more, to the same steps. Its zero points come in uint8, two a byte for codes of four
# bits.
_LINEAR = """
<domain: "reader_edge", opset_import: ["" : 24, "com.microsoft" : 1, "reader_edge" : 1]>
{name}Linear <K, N> (rows, {parts}) => (output)
{{
  sizes = Constant <value_ints = [-1, {num_inputs}]> ()
  rounded, steps, step = reader_edge.RoundedBlocks (rows, sizes)
{codes}
{scales}
  all_sizes = Shape (scales)
{zeros}
  product = com.microsoft.MatMulNBits
    <K : int = @K, N : int = @N, bits = {stored_bits}, block_size = {num_inputs}, accuracy_level = 4>
    (rounded, codes, scales, zeros)
{output}
}}
"""
_ZEROS = "  zeros = ConstantOfShape <value = uint8[1] {{{zero}}}> ({sizes})"
_PAIRED_SIZES = """
  two = Constant <value_ints = [2]> ()
  one = Constant <value_ints = [1]> ()
  num_outputs, num_blocks = Split <axis = 0, num_outputs = 2> (all_sizes)
  raised = Add (num_blocks, one)
  num_pairs = Div (raised, two)
  pair_sizes = Concat <axis = 0> (num_outputs, num_pairs)
"""
# Minima times what each block of a row adds up to.
_WITH_MINIMA = """
{minima}
  last = Constant <value_ints = [-1]> ()
  leading = Shape <start = 0, end = -1> (rows)
  block_sizes = Concat <axis = 0> (leading, last)
  sum = ReduceSum <keepdims = 1> (steps, last)
  scaled = Mul (sum, step)
  sums = Reshape (scaled, block_sizes)
  columns = Transpose <perm = [1, 0]> (minima)
  lifted = MatMul (sums, columns)
  output = Add (product, lifted)
"""


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A matrix (J, K) in a graph; values: by the names of its type's `parts`."""

    block_type: BlockType
    shape: tuple[int, int]
    values: Mapping[str, ir.Value]


def store_blocks(editor: GraphEditor, blocks: Blocks, name: str) -> StoredBlocks:
    """A matrix as initializers."""
    kind = blocks.block_type.name.lower()
    values = {part: editor.constant(array, f"{name}.{kind}.{part}") for part, array in blocks.arrays.items()}
    return StoredBlocks(blocks.block_type, blocks.shape, values)


def gguf_linear(editor: GraphEditor, rows: ir.Value, matrix: StoredBlocks) -> ir.Value:
    """rows (..., K), rounded in blocks, times the matrix's transpose -> (..., J)."""
    block_type = matrix.block_type
    define(editor, *_helpers(block_type), _ROUNDED_BLOCKS, _definition(block_type))
    num_outputs, num_inputs = matrix.shape
    sizes = {"K": num_inputs, "N": num_outputs}
    return editor.op(f"{block_type.name}Linear", [rows, *matrix.values.values()], sizes, domain=OPERATOR_DOMAIN)


def looked_up(editor: GraphEditor, matrix: StoredBlocks, indices: ir.Value) -> ir.Value:
    """Rows (B, N, K) of a matrix, those at `indices` (B, N), with the values that its file gives them."""
    block_type = matrix.block_type
    define(editor, *_helpers(block_type))
    rows = {
        part: editor.op("Gather", [value, indices], {"axis": 0}, dtype=value.dtype or ir.DataType.FLOAT)
        for part, value in matrix.values.items()
    }
    integers = editor.cast(_codes(editor, block_type, rows), ir.DataType.FLOAT)
    if block_type.zero:
        integers = editor.op("Sub", [integers, editor.scalar(block_type.zero)])
    last = editor.int64s(-1)
    weight = editor.op("Mul", [integers, editor.op("Unsqueeze", [_numbers(editor, rows, "scale"), last])])
    if block_type.has_minima:
        weight = editor.op("Add", [weight, editor.op("Unsqueeze", [_numbers(editor, rows, "minimum"), last])])
    return editor.op("Reshape", [weight, editor.int64s(0, 0, matrix.shape[1])])


def _codes(editor: GraphEditor, block_type: BlockType, parts: Mapping[str, ir.Value]) -> ir.Value:
    """(..., blocks, n) of arrays (..., blocks, bytes)."""
    if block_type.bits == 8:
        return parts["values"]
    inputs = [parts[name] for name in ("values", "highs") if name in parts]
    return editor.op(f"Codes{block_type.bits}", inputs, domain=OPERATOR_DOMAIN, dtype=ir.DataType.UINT8)


def _numbers(editor: GraphEditor, parts: Mapping[str, ir.Value], name: str) -> ir.Value:
    """Scales or minima (..., blocks) in fp32."""
    numbers, codes = parts[f"{name}_numbers"], parts.get(f"{name}_codes")
    if codes is None:
        return editor.cast(numbers, ir.DataType.FLOAT)
    return editor.op("SharedNumbers", [numbers, codes], domain=OPERATOR_DOMAIN)


def _helpers(block_type: BlockType) -> list[str]:
    """Definitions that both products and lookups of a type need."""
    texts = [] if block_type.bits == 8 else [_CODES_4]
    if high_bits := {5: 1, 6: 2}.get(block_type.bits):
        shifts = range(0, 8, high_bits)
        numbers = ", ".join(map(str, shifts))
        texts.append(_CODES_HIGH.format(bits=block_type.bits, mask=2**high_bits - 1, count=len(shifts), shifts=numbers))
    return [*texts, _SHARED_NUMBERS] if block_type.num_sharing > 1 else texts


def _definition(block_type: BlockType) -> str:
    """The text of a type's product."""
    is_packed, zero = block_type.bits == 4, block_type.zero
    codes = {4: "codes = Identity (values)", 8: "codes = Identity (values)"}.get(
        block_type.bits, f"codes = reader_edge.Codes{block_type.bits} (values, highs)"
    )
    zeros = _ZEROS.format(zero=zero * 17 if is_packed else zero, sizes="pair_sizes" if is_packed else "all_sizes")
    minima = _WITH_MINIMA.format(minima=_numbers_text(block_type, "minimum", "minima"))
    return _LINEAR.format(
        name=block_type.name,
        parts=", ".join(block_type.parts),
        num_inputs=block_type.num_inputs,
        codes=f"  {codes}",
        scales=_numbers_text(block_type, "scale", "scales"),
        zeros=_PAIRED_SIZES + zeros if is_packed else zeros,
        stored_bits=4 if is_packed else 8,
        output=minima if block_type.has_minima else "  output = Identity (product)",
    )


def _numbers_text(block_type: BlockType, name: str, result: str) -> str:
    if block_type.num_sharing > 1:
        return f"  {result} = reader_edge.SharedNumbers ({name}_numbers, {name}_codes)"
    return f"  {result} = Cast <to = 1> ({name}_numbers)"
