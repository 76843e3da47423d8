"""ONNX functions that define the operators of block_linear.py (products with GGUF blocks), type by type, as text."""

from collections.abc import Iterable

from reader_edge_export.blocks.block_type import BlockType

# values (..., bytes), two codes a byte -> (..., n)
CODES_4 = """
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

# The same with one or two bits more, from qh (..., bytes).
_CODES_HIGH = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
Codes{bits} (qs, qh) => (codes)
{{
  last = Constant <value_ints = [-1]> ()
  four = Constant <value = uint8 {{4}}> ()
  mask = Constant <value = uint8 {{{mask}}}> ()
  shifts = Constant <value = uint8[{count}] {{{shifts}}}> ()

  low = reader_edge.Codes4 (qs)
  sizes = Shape (low)
  packed = Unsqueeze (qh, last)
  shifted = BitShift <direction = "RIGHT"> (packed, shifts)
  bits = BitwiseAnd (shifted, mask)
  raised = BitShift <direction = "LEFT"> (bits, four)
  high = Reshape (raised, sizes)
  codes = BitwiseOr (low, high)
}}
"""

# qs (..., bytes) -> (..., n): what their codes stand for.
_LEVELS = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
{name}Levels (qs) => (levels)
{{
  table = Constant <value = uint8[16] {{{levels}}}> ()
  codes = reader_edge.Codes4 (qs)
  places = Cast <to = 6> (codes)
  levels = Gather (table, places)
}}
"""

# exponents (..., blocks), 128 more -> (..., blocks)
_POWERS_OF_TWO = """
<domain: "reader_edge", opset_import: ["" : 24]>
PowersOfTwo (exponents) => (numbers)
{
  two = Constant <value_float = 2.0> ()
  bias = Constant <value_float = 128.0> ()
  raised = Cast <to = 1> (exponents)
  powers = Sub (raised, bias)
  numbers = Pow (two, powers)
}
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

# qh (..., bytes), h bits a code -> (..., n / 2), the same two a byte. Products unpack no codes: where ONNX Runtime
# folds constants, all that is between lies in memory until every matrix of the model is done.
_HIGH_HALVES = """
<domain: "reader_edge", opset_import: ["" : 24]>
HighHalves{bits} (qh) => (halves)
{{
  last = Constant <value_ints = [-1]> ()
  shifts = Constant <value = uint8[{count}] {{{shifts}}}> ()
  first_mask = Constant <value = uint8 {{{first_mask}}}> ()
  second_mask = Constant <value = uint8 {{{second_mask}}}> ()
  left = Constant <value = uint8 {{{left}}}> ()
  leading = Shape <start = 0, end = -1> (qh)
  sizes = Concat <axis = 0> (leading, last)

  packed = Unsqueeze (qh, last)
  shifted = BitShift <direction = "RIGHT"> (packed, shifts)
  first = BitwiseAnd (shifted, first_mask)
  second = BitwiseAnd (shifted, second_mask)
  raised = BitShift <direction = "LEFT"> (second, left)
  pairs = BitwiseOr (first, raised)
  halves = Reshape (pairs, sizes)
}}
"""

# MatMulNBits rounds its rows once more, to the same steps.
_LINEAR = """
<domain: "reader_edge", opset_import: ["" : 24, "com.microsoft" : 1, "reader_edge" : 1]>
{name}Linear <K, N> (rows, {parts}) => (output)
{{
  sizes = Constant <value_ints = [-1, {num_inputs}]> ()
  rounded, steps, step = reader_edge.RoundedBlocks (rows, sizes)
{scales}
  byte_sizes = Shape (scales)
  two = Constant <value_ints = [2]> ()
  one = Constant <value_ints = [1]> ()
  num_outputs, num_blocks = Split <axis = 0, num_outputs = 2> (byte_sizes)
  rounded_up = Add (num_blocks, one)
  num_pairs = Div (rounded_up, two)
  half_sizes = Concat <axis = 0> (num_outputs, num_pairs)
{product}
{output}
}}
"""
# Zero points, of four bits two a byte too.
_PRODUCT = """
  {result}_zeros = ConstantOfShape <value = uint8[1] {{{zero}}}> ({sizes})
  {result} = com.microsoft.MatMulNBits
    <K : int = @K, N : int = @N, bits = {bits}, block_size = {num_inputs}, accuracy_level = 4>
    (rounded, {codes}, scales, {result}_zeros)
"""
_TWO_PRODUCTS = """
  halves = reader_edge.HighHalves{bits} (qh)
{low}
{high}
  sixteen = Constant <value_float = 16.0> ()
  high = Mul (high_product, sixteen)
  product = Add (low_product, high)
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


def lookup_definitions(block_type: BlockType) -> list[str]:
    """What lookups in a matrix of a type need."""
    texts = [] if block_type.bits == 8 else [CODES_4]
    if block_type.qh_bits:
        shifts = range(0, 8, block_type.qh_bits)
        mask = 2**block_type.qh_bits - 1
        texts.append(_CODES_HIGH.format(bits=block_type.bits, mask=mask, count=len(shifts), shifts=_list(shifts)))
    if block_type.blocks_per_super_block > 1:
        texts.append(_SHARED_NUMBERS)
    return [*texts, *_of_levels(block_type)]


def product_definitions(block_type: BlockType) -> list[str]:
    """What products by a matrix of a type need."""
    texts = [_SHARED_NUMBERS] if block_type.blocks_per_super_block > 1 else []
    if block_type.qh_bits:
        texts.append(_high_halves(block_type))
    if block_type.levels:
        texts += [CODES_4, *_of_levels(block_type)]
    return [*texts, _ROUNDED_BLOCKS, _definition(block_type)]


def _of_levels(block_type: BlockType) -> list[str]:
    """What types of levels and powers of two need."""
    texts = []
    if block_type.levels:
        texts.append(_LEVELS.format(name=block_type.name, levels=_list(block_type.levels)))
    return [*texts, _POWERS_OF_TWO] if block_type.has_exponents else texts


def _high_halves(block_type: BlockType) -> str:
    bits = block_type.qh_bits
    shifts, mask = range(0, 8, 2 * bits), 2**bits - 1
    return _HIGH_HALVES.format(
        bits=block_type.bits,
        count=len(shifts),
        shifts=_list(shifts),
        first_mask=mask,
        second_mask=mask << bits,
        left=4 - bits,
    )


def _definition(block_type: BlockType) -> str:
    """The text of a type's product."""
    bits, zero = block_type.bits, block_type.zero
    if block_type.qh_bits:
        low = _product_text(block_type, "low_product", "qs", 4, zero % 16)
        high = _product_text(block_type, "high_product", "halves", 4, zero // 16)
        product = _TWO_PRODUCTS.format(bits=bits, low=low, high=high)
    elif block_type.levels:
        levels = f"  levels = reader_edge.{block_type.name}Levels (qs)"
        product = levels + _product_text(block_type, "product", "levels", 8, zero)
    else:
        product = _product_text(block_type, "product", "qs", bits, zero)
    minima = _WITH_MINIMA.format(minima=_numbers_text(block_type, "minimum", "minima"))
    return _LINEAR.format(
        name=block_type.name,
        parts=", ".join(block_type.parts),
        num_inputs=block_type.num_inputs,
        scales=_numbers_text(block_type, "scale", "scales"),
        product=product,
        output=minima if block_type.has_minima else "  output = Identity (product)",
    )


def _product_text(block_type: BlockType, result: str, codes: str, bits: int, zero: int) -> str:
    return _PRODUCT.format(
        result=result,
        codes=codes,
        bits=bits,
        num_inputs=block_type.num_inputs,
        zero=17 * zero if bits == 4 else zero,
        sizes="half_sizes" if bits == 4 else "byte_sizes",
    )


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _numbers_text(block_type: BlockType, name: str, result: str) -> str:
    if block_type.has_exponents:
        return f"  {result} = reader_edge.PowersOfTwo ({name}_exponents)"
    if block_type.blocks_per_super_block > 1:
        return f"  {result} = reader_edge.SharedNumbers ({name}_numbers, {name}_codes)"
    return f"  {result} = Cast <to = 1> ({name}_numbers)"
