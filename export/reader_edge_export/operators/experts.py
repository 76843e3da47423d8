"""Mixtures of experts: each row times the matrices of the experts that it is sent to.

A product takes rows (R, K) and the expert (R,) of each, and reads the matrices of those experts alone. A row's outputs
are the same bits whatever rows stand beside it. What else a mixture does is traced (`LayerExperts.mix`): elementwise,
but for the sum over a row's experts, which CumSum adds by rank.
"""

from collections.abc import Sequence

import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor, constant_shape
from reader_edge_export.operators.block_definitions import product_definitions
from reader_edge_export.operators.block_linear import StoredBlocks
from reader_edge_export.operators.definitions import (
    HADAMARD_ROWS,
    HADAMARD_STEPS,
    OPERATOR_DOMAIN,
    Int8Matrix,
    define,
    hadamard_row_product,
)
from reader_edge_export.operators.hadamard_linear import HADAMARD_BLOCK_LINEAR, BlockMatrix

# rows (R, K) and experts (R,) -> (R, J), expert by expert; inputs have a part for each, outputs (X, J).
_EACH_EXPERT = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
{operator} {attributes} (rows, experts, {inputs}) => (output)
{{
  yes = Constant <value = bool {{1}}> ()
  first = Constant <value_ints = [0]> ()
  distinct = Unique <sorted = 1> (experts)
  count = Size (distinct)
  num_rows = Shape <start = 0, end = 1> (rows)
  num_outputs = Shape <start = 1, end = 2> ({outputs})
  sizes = Concat <axis = 0> (num_rows, num_outputs)
  nothing = ConstantOfShape (sizes)
  output = Loop <body = each (int64 i, bool goes, done) => (goes_on, more) {{
    goes_on = And (yes, goes)
    expert = Gather (distinct, i)
    is_own = Equal (experts, expert)
    places = NonZero (is_own)
    row_places = Squeeze (places, first)
    own_rows = Gather (rows, row_places)
{gathered}
    own_output = reader_edge.{product} {passed} (own_rows, {own})
    output_places = Transpose (places)
    more = ScatterND (done, output_places, own_output)
  }}> (count, yes, nothing)
}}
"""

# The same row by row, where a product's bits hang on how many rows it takes. ONNX does not know what MatMulNBits gives.
_EACH_ROW = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
{operator} {attributes} (rows, experts, {inputs}) => (output)
{{
  yes = Constant <value = bool {{1}}> ()
  one = Constant <value_float = 1.0> ()
  first = Constant <value_ints = [0]> ()
  count = Size (experts)
  whole = Loop <body = each (int64 i, bool goes) => (goes_on, typed_output) {{
    goes_on = And (yes, goes)
    expert = Gather (experts, i)
    row = Gather (rows, i)
    own_rows = Unsqueeze (row, first)
{gathered}
    own_output = reader_edge.{product} {passed} (own_rows, {own})
    typed_output = Mul (one, own_output)
  }}> (count, yes)
  axis = Constant <value_ints = [1]> ()
  output = Squeeze (whole, axis)
}}
"""

_PLAIN_EXPERT = """
<domain: "reader_edge", opset_import: ["" : 24]>
PlainExpert (rows, weight) => (output)
{
  output = Gemm <transB = 1> (rows, weight)
}
"""


def plain_experts(editor: GraphEditor, rows: ir.Value, experts: ir.Value, weight: ir.Value) -> ir.Value:
    """rows (R, K), each times its expert's matrix of weight (X, J, K), in fp32 -> (R, J)."""
    define(editor, _PLAIN_EXPERT, _definition(_EACH_ROW, "PlainExperts", "PlainExpert", ["weight"]))
    return editor.op("PlainExperts", [rows, experts, weight], domain=OPERATOR_DOMAIN)


def int8_experts(
    editor: GraphEditor, rows: ir.Value, experts: ir.Value, matrices: Int8Matrix, num_planes: int
) -> ir.Value:
    """rows (R, K), each in one or two planes of int8, times its expert's matrix -> (R, J). matrices: X in front."""
    suffix = {1: "", 2: "16"}[num_planes]
    operator, product = f"SpreadRowExperts{suffix}", f"SpreadRowExpert{suffix}"
    each = _definition(_EACH_EXPERT, operator, product, ["smoothing", "hadamard", "values", "scales"])
    define(editor, HADAMARD_ROWS, HADAMARD_STEPS, hadamard_row_product(product, num_planes, is_constant=False), each)
    stored = [matrices.smoothing, matrices.hadamard, matrices.values, matrices.scales]
    return editor.op(operator, [rows, experts, *stored], domain=OPERATOR_DOMAIN)


def block_experts(editor: GraphEditor, rows: ir.Value, experts: ir.Value, matrices: BlockMatrix) -> ir.Value:
    """rows (R, K), each in int8, times its expert's matrix of four bits -> (R, J). matrices: X in front."""
    inputs = ["smoothing", "hadamard", "values", "block_scales", "scales"]
    definition = _definition(_EACH_EXPERT, "SpreadBlockExperts", "SpreadBlockLinear", inputs, ["K", "N"])
    define(editor, HADAMARD_ROWS, HADAMARD_STEPS, HADAMARD_BLOCK_LINEAR, definition)
    stored = [matrices.smoothing, matrices.hadamard, matrices.values, matrices.block_scales, matrices.scales]
    sizes = {"K": constant_shape(matrices.smoothing)[1], "N": constant_shape(matrices.scales)[1]}
    return editor.op("SpreadBlockExperts", [rows, experts, *stored], sizes, domain=OPERATOR_DOMAIN)


def gguf_experts(editor: GraphEditor, rows: ir.Value, experts: ir.Value, matrices: StoredBlocks) -> ir.Value:
    """rows (R, K), rounded in blocks, each times its expert's matrix -> (R, J). matrices: values with X in front."""
    name = matrices.block_type.name
    definition = _definition(_EACH_ROW, f"{name}Experts", f"{name}Linear", matrices.block_type.parts, ["K", "N"])
    define(editor, *product_definitions(matrices.block_type), definition)
    num_outputs, num_inputs = matrices.shape
    sizes = {"K": num_inputs, "N": num_outputs}
    return editor.op(f"{name}Experts", [rows, experts, *matrices.values.values()], sizes, domain=OPERATOR_DOMAIN)


def _definition(
    template: str, operator: str, product: str, inputs: Sequence[str], attributes: Sequence[str] = ()
) -> str:
    """The text of an operator that does `product` by each expert's own inputs; the Hadamard matrix is everybody's."""
    own = {name: name if name == "hadamard" else f"own_{name}" for name in inputs}
    gathered = [f"    {each} = Gather ({name}, expert)" for name, each in own.items() if each != name]
    return template.format(
        operator=operator,
        product=product,
        inputs=", ".join(inputs),
        outputs=inputs[-1],
        gathered="\n".join(gathered),
        own=", ".join(own.values()),
        attributes=f"<{', '.join(attributes)}>" if attributes else "",
        passed="<" + ", ".join(f"{name} : int = @{name}" for name in attributes) + ">" if attributes else "",
    )
