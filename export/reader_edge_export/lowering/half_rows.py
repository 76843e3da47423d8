"""Rows of a KV cache in fp16: how keys and values are rounded when they are written. They are read as they lie."""

import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import OPERATOR_DOMAIN, define

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


def half_rows(editor: GraphEditor, key: ir.Value, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """key and value (B, H, N, D) -> rows of the cache."""
    define(editor, _HALF_ROWS)
    key_rows, value_rows = editor.op_multi("HalfRows", [key, value], 2, domain=OPERATOR_DOMAIN)
    key_rows.dtype = value_rows.dtype = ir.DataType.FLOAT16
    return key_rows, value_rows
