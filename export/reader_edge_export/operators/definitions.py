"""What operators of the domain "reader_edge" compute, in standard ones: int8 products, SwiGLU, rotary heads.

A package carries these definitions, so ONNX Runtime can run it as it is, node by node. Where the native library is
registered, its kernels take their place, with the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_runtime.execution.onnxruntime.native import OPERATORS_PROPERTY

OPERATOR_DOMAIN = "reader_edge"

# rows (..., K), smoothing (K,), hadamard (b, b) of ones and minus ones -> (..., K): each block of b inputs, smoothed,
# times the matrix. Adding 2 b times the row's largest number rounds to as many bits as leave the sums of a block exact
# in fp32, in any order.
HADAMARD_ROWS = """
<domain: "reader_edge", opset_import: ["" : 24]>
SpreadRows (rows, smoothing, hadamard) => (spread)
{
  last = Constant <value_ints = [-1]> ()
  two = Constant <value_float = 2.0> ()
  block = Shape <start = 0, end = 1> (hadamard)
  block_number = Cast <to = 1> (block)
  raising = Mul (block_number, two)
  block_sizes = Concat <axis = 0> (last, block)
  sizes = Shape (rows)

  smoothed = Mul (rows, smoothing)
  magnitudes = Abs (smoothed)
  largest = ReduceMax <keepdims = 1> (magnitudes, last)
  height = Mul (largest, raising)
  raised = Add (smoothed, height)
  rounded = Sub (raised, height)
  blocks = Reshape (rounded, block_sizes)
  sums = MatMul (blocks, hadamard)
  spread = Reshape <allowzero = 1> (sums, sizes)
}
"""

# The same in steps of which the row's largest number has `most`, and that number (..., 1). Of no rows, ONNX Runtime
# reduces nothing, and the first of each stands for it.
HADAMARD_STEPS = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
SpreadSteps (rows, smoothing, hadamard, most) => (in_steps, top)
{
  begin = Constant <value_ints = [0]> ()
  end = Constant <value_ints = [1]> ()
  last = Constant <value_ints = [-1]> ()
  smallest = Constant <value_float = 1e-30> ()

  spread = reader_edge.SpreadRows (rows, smoothing, hadamard)
  magnitudes = Abs (spread)
  reduced = ReduceMax <keepdims = 1> (magnitudes, last)
  largest = Slice (reduced, begin, end, last)
  top = Max (largest, smallest)
  steps_of_one = Div (most, top)
  in_steps = Mul (spread, steps_of_one)
}
"""

# rows (..., K), rotated, times the transpose of the int8 weight (J, K) with scales (J,) -> (..., J). Each row is
# rounded with a scale of its own, and integer sums are the same in any order, so that a row never depends on
# its neighbours. Activations are unsigned: ONNX Runtime's signed kernels are up to 20 times slower on x86.
_SPREAD_ROW_PRODUCT = """
<domain: "reader_edge", opset_import: ["" : 24, "com.microsoft" : 1, "reader_edge" : 1]>
{name} (rows, smoothing, hadamard, weight, scales) => (output)
{{
  one = Constant <value_float = 1.0> ()
  most = Constant <value_float = 127.0> ()
  zero_point = Constant <value = uint8 {{128}}> ()
{columns}
  scales_of_one = Div (scales, most)

  in_steps, top = reader_edge.SpreadSteps (rows, smoothing, hadamard, most)
  quantized = QuantizeLinear (in_steps, one, zero_point)
  product = com.microsoft.MatMulIntegerToFloat (quantized, columns, one, scales_of_one, {zero_points})
  output = Mul (product, top)
}}
"""

# The same in steps 257 times finer: a row is two of bytes, 256 * high + low, which take their product together.
_SPREAD_ROW_PRODUCT_16 = """
<domain: "reader_edge", opset_import: ["" : 24, "com.microsoft" : 1, "reader_edge" : 1]>
{name} (rows, smoothing, hadamard, weight, scales) => (output)
{{
  one = Constant <value_float = 1.0> ()
  most = Constant <value_float = 32639.0> ()
  half = Constant <value_float = 128.0> ()
  base = Constant <value_float = 256.0> ()
  inverse = Constant <value_float = 0.00390625> ()
  zero_point = Constant <value = uint8 {{128}}> ()
{columns}
  scales_of_one = Div (scales, most)

  in_steps, top = reader_edge.SpreadSteps (rows, smoothing, hadamard, most)
  steps = Round (in_steps)
  raised = Add (steps, half)
  parts = Mul (raised, inverse)
  high = Floor (parts)
  high_steps = Mul (high, base)
  low = Sub (steps, high_steps)
  planes = Concat <axis = 0> (high, low)
  quantized = QuantizeLinear (planes, one, zero_point)
  products = com.microsoft.MatMulIntegerToFloat (quantized, columns, one, scales_of_one, {zero_points})
  high_product, low_product = Split <axis = 0, num_outputs = 2> (products)
  high_sum = Mul (high_product, base)
  product = Add (high_sum, low_product)
  output = Mul (product, top)
}}
"""

# Either of them, and a bias (J,) added last.
_BIAS = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
{linear}Bias (rows, smoothing, hadamard, weight, scales, bias) => (output)
{{
  product = reader_edge.{linear} (rows, smoothing, hadamard, weight, scales)
  output = Add (bias, product)
}}
"""

# gate and up (..., 2 J), side by side -> (..., J): silu(gate) * up. The sigmoid is spelled out by Exp.
_SWIGLU = """
<domain: "reader_edge", opset_import: ["" : 24]>
SwiGLU (gate_up) => (output)
{
  one = Constant <value_float = 1.0> ()
  gate, up = Split <axis = -1, num_outputs = 2> (gate_up)
  opposite = Neg (gate)
  exponential = Exp (opposite)
  divisor = Add (exponential, one)
  activated = Div (gate, divisor)
  output = Mul (activated, up)
}
"""

# qkv (B, N, (Hq + 2 Hkv) D), cosines and sines (B, N, D / 2) -> query (B, Hq, N, D), key and value (B, Hkv, N, D):
# the product's columns as heads, the rotary embedding applied to query and key.
_ROTARY_HEADS = """
<domain: "reader_edge", opset_import: ["" : 24]>
RotaryHeads <q_num_heads, kv_num_heads> (qkv, cosines, sines) => (query, key, value)
{
  axis = Constant <value_ints = [0]> ()
  leading = Constant <value_ints = [0, 0]> ()
  rest = Constant <value_ints = [-1]> ()
  num_query = Constant <value_int : int = @q_num_heads> ()
  num_kv = Constant <value_int : int = @kv_num_heads> ()
  num_queries = Unsqueeze (num_query, axis)
  num_kvs = Unsqueeze (num_kv, axis)
  counts = Concat <axis = 0> (num_queries, num_kvs, num_kvs)
  num_heads = ReduceSum <keepdims = 1> (counts, axis)
  sizes = Concat <axis = 0> (leading, num_heads, rest)

  rows = Reshape (qkv, sizes)
  heads = Transpose <perm = [0, 2, 1, 3]> (rows)
  plain_query, plain_key, value = Split <axis = 1> (heads, counts)
  query = RotaryEmbedding (plain_query, cosines, sines)
  key = RotaryEmbedding (plain_key, cosines, sines)
}
"""


# log(1 + exp(x)) of each number, where ONNX Runtime's Softplus and Log round it differently by its place among others.
# With t = exp(-|x|) and s = t / (2 + t), log(1 + t) is 2 (s + s^3 / 3 + s^5 / 5 + ...), and s at most 1/3.
_SOFTPLUS = """
<domain: "reader_edge", opset_import: ["" : 24]>
Softplus (x) => (output)
{
  zero = Constant <value_float = 0.0> ()
  two = Constant <value_float = 2.0> ()
CONSTANTS
  magnitude = Abs (x)
  opposite = Neg (magnitude)
  exponential = Exp (opposite)
  divisor = Add (exponential, two)
  share = Div (exponential, divisor)
  square = Mul (share, share)
STEPS
  doubled = Mul (share, two)
  logarithm = Mul (doubled, sum_1)
  above = Max (x, zero)
  output = Add (above, logarithm)
}
""".replace(
    "CONSTANTS", "\n".join(f"  part_{odd} = Constant <value_float = {1 / odd:.9e}> ()" for odd in range(1, 17, 2))
).replace(
    "STEPS",
    "\n".join(
        f"  product_{odd} = Mul (square, {'part_15' if odd == 13 else f'sum_{odd + 2}'})\n"
        f"  sum_{odd} = Add (product_{odd}, part_{odd})"
        for odd in range(13, 0, -2)
    ),
)


_COLUMNS = "  columns = Transpose <perm = [1, 0]> (weight)"
# Products of unsigned by signed bytes saturate where there are no instructions for them, which ONNX Runtime
# avoids for constant weights alone: others are raised to unsigned.
_RAISED_COLUMNS = """
  raise = Constant <value = int32 {128}> ()
  numbers = Cast <to = 6> (weight)
  raised_numbers = Add (numbers, raise)
  bytes = Cast <to = 2> (raised_numbers)
  columns = Transpose <perm = [1, 0]> (bytes)
""".strip("\n")


def hadamard_row_product(name: str, num_planes: int, *, is_constant: bool) -> str:
    """Defines an operator: rotated rows, in one or two planes of int8, by a weight that is constant or not."""
    template = {1: _SPREAD_ROW_PRODUCT, 2: _SPREAD_ROW_PRODUCT_16}[num_planes]
    if is_constant:
        return template.format(name=name, columns=_COLUMNS, zero_points="zero_point")
    return template.format(name=name, columns=_RAISED_COLUMNS, zero_points="zero_point, zero_point")


class Definition:
    """An operator's definition in the making: fill it with `editor`, over `inputs`."""

    def __init__(self, name: str, *inputs: str, overload: str = "") -> None:
        """overload: tells it from others of the same operator, of tensors of other sizes."""
        self._overload = overload
        self.inputs = [ir.Value(name=input_name, type=ir.TensorType(ir.DataType.FLOAT)) for input_name in inputs]
        graph = ir.Graph(self.inputs, [], nodes=[], opset_imports={"": 24}, name=name)
        self.editor = GraphEditor(ir.Model(graph, ir_version=11))

    def add_to(self, editor: GraphEditor, output: ir.Value, attributes: Sequence[str]) -> None:
        """Give the model of `editor` this definition; `attributes`: names of those that nodes have."""
        self.editor.append()
        graph = self.editor.graph
        graph.outputs.append(output)
        for value in list(graph.initializers.values()):  # functions have none: constants are nodes there
            assert value.const_value is not None
            node = ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", value.const_value)])
            node.outputs[0].name = value.name
            ir.convenience.replace_all_uses_with(value, node.outputs[0])
            graph.insert_before(graph[0], node)
        graph.initializers.clear()
        declared = [ir.Attr(name, ir.AttributeType.FLOAT, None) for name in attributes]
        _add(editor, ir.Function(OPERATOR_DOMAIN, graph.name or "", self._overload, graph=graph, attributes=declared))


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A stored matrix: int8 values (J, K), scales (J,), and how rows (..., K) are rotated before they meet it.

    smoothing: of each input (K,). hadamard: ones and minus ones (b, b).
    """

    values: ir.Value
    scales: ir.Value
    smoothing: ir.Value
    hadamard: ir.Value


def hadamard_rows(editor: GraphEditor, rows: ir.Value, smoothing: ir.Value, hadamard: ir.Value) -> ir.Value:
    """rows (..., K), smoothed by (K,), times the Hadamard matrix (b, b) in blocks -> (..., K)."""
    define(editor, HADAMARD_ROWS)
    return editor.op("SpreadRows", [rows, smoothing, hadamard], domain=OPERATOR_DOMAIN)


def hadamard_row_linear(
    editor: GraphEditor, rows: ir.Value, matrix: Int8Matrix, bias: ir.Value | None, num_planes: int
) -> ir.Value:
    """rows (..., K), in one or two planes of int8, times the matrix, plus the bias (J,) -> (..., J)."""
    linear = {1: "SpreadRowLinear", 2: "SpreadRowLinear16"}[num_planes]
    define(editor, HADAMARD_ROWS, HADAMARD_STEPS, hadamard_row_product(linear, num_planes, is_constant=True))
    inputs = [rows, matrix.smoothing, matrix.hadamard, matrix.values, matrix.scales]
    if bias is None:
        return editor.op(linear, inputs, domain=OPERATOR_DOMAIN)
    define(editor, _BIAS.format(linear=linear))
    return editor.op(f"{linear}Bias", [*inputs, bias], domain=OPERATOR_DOMAIN)


def swiglu(editor: GraphEditor, gate_up: ir.Value) -> ir.Value:
    """gate and up (..., 2 J) side by side -> silu(gate) * up (..., J)."""
    define(editor, _SWIGLU)
    return editor.op("SwiGLU", [gate_up], domain=OPERATOR_DOMAIN)


def softplus(editor: GraphEditor, x: ir.Value) -> ir.Value:
    """log(1 + exp(x)) of each number, whose bits hang on nothing else."""
    define(editor, _SOFTPLUS)
    return editor.op("Softplus", [x], domain=OPERATOR_DOMAIN)


def rotary_heads(
    editor: GraphEditor, qkv: ir.Value, cosines: ir.Value, sines: ir.Value, num_heads: int, num_kv_heads: int
) -> Sequence[ir.Value]:
    """qkv (B, N, (Hq + 2 Hkv) D) -> query (B, Hq, N, D) and key rotated by the angles (B, N, D / 2), and value."""
    define(editor, _ROTARY_HEADS)
    attributes = {"q_num_heads": num_heads, "kv_num_heads": num_kv_heads}
    return editor.op_multi("RotaryHeads", [qkv, cosines, sines], 3, attributes, domain=OPERATOR_DOMAIN)


def define(editor: GraphEditor, *texts: str) -> None:
    """Give the model these definitions, those that it has already left alone."""
    for text in texts:
        _add(editor, ir.serde.deserialize_function(onnx.parser.parse_function(text)))


def _add(editor: GraphEditor, function: ir.Function) -> None:
    model = editor.model
    model.functions.setdefault(function.identifier(), function)
    model.metadata_props[OPERATORS_PROPERTY] = " ".join(sorted(other.name for other in model.functions.values()))
