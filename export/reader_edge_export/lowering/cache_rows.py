"""Graph pieces that write and read rows of an int8 KV cache, and write those of one in fp16.

A row is the key or value of one token and KV head: D numbers in 127 steps of its magnitude, then the magnitude, which
is the row's largest number rounded up to 64ths of a power of two. Its last two bytes are those 64ths, 64 to 128, less
192, and the power's exponent, -100 to 100. So one tensor holds all of a row, which moves as a whole; and any bytes at
all are finite numbers.
"""

import numpy as np
import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.shared_constants import LEAST_EXPONENT, MOST_EXPONENT
from reader_edge_export.operators.definitions import HADAMARD_ROWS, OPERATOR_DOMAIN, define

_FLOAT, _DOUBLE, _INT8, _INT64 = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT8, ir.DataType.INT64
_POWERS = np.exp2(np.clip(np.arange(-128, 128), LEAST_EXPONENT, MOST_EXPONENT)).astype(np.float32)  # of any last byte

# rows (..., D) -> int8 (..., D + 2)
_ROUND_ROWS = """
<domain: "reader_edge", opset_import: ["" : 24]>
RoundRows (rows) => (bytes)
{
  last = Constant <value_ints = [-1]> ()
  one = Constant <value_float = 1.0> ()
  smallest = Constant <value_float = 1e-30> ()
  most_parts = Constant <value_float = 128.0> ()
  parts_of_power = Constant <value_float = 64.0> ()
  most = Constant <value_float = 8128.0> ()
  origin_of_parts = Constant <value_float = 192.0> ()
  origin_of_powers = Constant <value_float = 128.0> ()
  zero_point = Constant <value = int8 {0}> ()
  powers = Constant <value_floats = [POWERS]> ()

  numbers = Abs (rows)
  largest = ReduceMax <keepdims = 1> (numbers, last)
  top = Max (largest, smallest)
  is_reached = GreaterOrEqual (top, powers)
  reached = Cast <to = 1> (is_reached)
  num_reached = ReduceSum <keepdims = 1> (reached, last)
  position = Sub (num_reached, one)
  index = Cast <to = 7> (position)
  power = Gather (powers, index)
  exact_powers = Div (top, power)
  exact_parts = Mul (exact_powers, parts_of_power)
  whole_parts = Ceil (exact_parts)
  parts = Min (whole_parts, most_parts)
  magnitude = Mul (parts, power)
  steps_of_one = Div (most, magnitude)
  in_steps = Mul (rows, steps_of_one)
  steps = QuantizeLinear (in_steps, one, zero_point)
  parts_byte = Sub (parts, origin_of_parts)
  power_byte = Sub (position, origin_of_powers)
  tail = Concat <axis = -1> (parts_byte, power_byte)
  tail_bytes = Cast <to = 3> (tail)
  bytes = Concat <axis = -1> (steps, tail_bytes)
}
""".replace("POWERS", ", ".join(f"{power:.9e}" for power in _POWERS))

# key and value (B, H, N, D), smoothing (D,), hadamard (b, b) -> int8 (B, H, N, D + 2); the key is rotated before it is
# rounded.
_CACHE_ROWS = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
CacheRows (key, smoothing, hadamard, value) => (key_rows, value_rows)
{
  spread = reader_edge.SpreadRows (key, smoothing, hadamard)
  both = Concat <axis = 1> (spread, value)
  both_rows = reader_edge.RoundRows (both)
  key_rows, value_rows = Split <axis = 1, num_outputs = 2> (both_rows)
}
"""
# key and value (B, H, N, D) -> the same in fp16; what is beyond its largest number becomes that, since an infinite key
# would leave nothing of all other rows.
_HALF_ROWS = """
<domain: "reader_edge", opset_import: ["" : 24]>
HalfRows (key, value) => (key_rows, value_rows)
{
  smallest = Constant <value_float = -65504.0> ()
  largest = Constant <value_float = 65504.0> ()
  key_within = Clip (key, smallest, largest)
  value_within = Clip (value, smallest, largest)
  key_rows = Cast <to = 10> (key_within)
  value_rows = Cast <to = 10> (value_within)
}
"""


def cache_rows(
    editor: GraphEditor, key: ir.Value, value: ir.Value, smoothing: ir.Value, hadamard: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """key and value (B, H, N, D) -> rows of the cache (B, H, N, D + 2), the key rotated by SpreadRows."""
    define(editor, HADAMARD_ROWS, _ROUND_ROWS, _CACHE_ROWS)
    key_rows, value_rows = editor.op_multi("CacheRows", [key, smoothing, hadamard, value], 2, domain=OPERATOR_DOMAIN)
    key_rows.dtype = value_rows.dtype = _INT8
    return key_rows, value_rows


def read_rows(editor: GraphEditor, rows: ir.Value, head_dim: int) -> tuple[ir.Value, ir.Value]:
    """rows (B, H, M, D + 2) -> steps (B, H, M, D) as float64, and 64 magnitudes (B, H, M, 1) in fp32."""
    sizes = editor.int64s(head_dim, 1, 1)
    steps, parts_byte, power_byte = editor.op_multi("Split", [rows, sizes], 3, {"axis": -1})
    for part in (steps, parts_byte, power_byte):
        part.dtype = _INT8
    parts = editor.op("Add", [editor.cast(parts_byte, _FLOAT), editor.scalar(192)])
    index = editor.op("Add", [editor.cast(power_byte, _INT64), editor.constant(np.array(128), "origin")], dtype=_INT64)
    power = editor.op("Gather", [editor.constant(_POWERS, "powers"), index])
    return editor.cast(steps, _DOUBLE), editor.op("Mul", [parts, power])


def half_rows(editor: GraphEditor, key: ir.Value, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """key and value (B, H, N, D) -> rows of the cache."""
    define(editor, _HALF_ROWS)
    key_rows, value_rows = editor.op_multi("HalfRows", [key, value], 2, domain=OPERATOR_DOMAIN)
    key_rows.dtype = value_rows.dtype = ir.DataType.FLOAT16
    return key_rows, value_rows
