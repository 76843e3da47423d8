"""Operators of the domain "reader_edge": what they compute, in operators that ONNX Runtime has.

A package carries these definitions, so ONNX Runtime can run it as it is, node by node. Where the native library is
registered, its kernels take their place, with the same bits.
"""

import onnx
import onnx_ir as ir

from reader_edge_export.graph_editor import GraphEditor

OPERATOR_DOMAIN = "reader_edge"

# rows (..., K), int8 weight (J, K) and its scales (J,) -> (..., J). Each row is quantised with a scale of its own, and
# integer sums are the same in any order, so that a row never depends on its neighbours. Activations are unsigned:
# ONNX Runtime's signed kernels are up to 20 times slower on x86.
_ROW_LINEAR = """
<domain: "reader_edge", opset_import: ["" : 24, "com.microsoft" : 1]>
RowLinear (rows, weight, scales) => (output)
{
  rest = Constant <value_ints = [-1]> ()
  last = Constant <value_ints = [1]> ()
  one = Constant <value_float = 1.0> ()
  factor = Constant <value_float = 0.007874015718698502> ()
  smallest = Constant <value_float = 1e-9> ()
  zero_point = Constant <value = uint8 {128}> ()
  zero_points = Constant <value = uint8[1] {128}> ()

  num_outputs = Shape <start = 0, end = 1> (weight)
  num_inputs = Shape <start = 1, end = 2> (weight)
  flat_shape = Concat <axis = 0> (rest, num_inputs)
  flat = Reshape (rows, flat_shape)

  magnitudes = Abs (flat)
  largest = ReduceMax <keepdims = 0> (magnitudes, last)
  full_scales = Mul (largest, factor)
  row_scales = Max (full_scales, smallest)
  num_rows = Shape (row_scales)
  row_zero_points = Expand (zero_points, num_rows)
  quantized = QuantizeLinear <axis = 0> (flat, row_scales, row_zero_points)

  columns = Transpose <perm = [1, 0]> (weight)
  product = com.microsoft.MatMulIntegerToFloat (quantized, columns, one, scales, zero_point)
  column_of_scales = Unsqueeze (row_scales, last)
  scaled = Mul (product, column_of_scales)

  leading_sizes = Shape <start = 0, end = -1> (rows)
  output_shape = Concat <axis = 0> (leading_sizes, num_outputs)
  output = Reshape (scaled, output_shape)
}
"""

_DEFINITIONS = {"RowLinear": _ROW_LINEAR}


def add_operator_definitions(editor: GraphEditor) -> None:
    """Give the model the definitions of the operators its graph uses."""
    used = {node.op_type for node in editor.graph if node.domain == OPERATOR_DOMAIN}
    for name in sorted(used):
        function = ir.serde.deserialize_function(onnx.parser.parse_function(_DEFINITIONS[name]))
        editor.model.functions[function.identifier()] = function
        editor.graph.opset_imports[OPERATOR_DOMAIN] = 1
