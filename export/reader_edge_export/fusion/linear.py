"""A product over rows flattened to two axes becomes MatMul and Add over the rows as they are.

transformers' Conv1D (GPT-2) flattens, and gives the rows their sizes back: arithmetic that a GPU's provider would leave
to the host, in the midst of every layer.
"""

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

from reader_edge_export.graph_editor import weight_of


def _flattened(op: Any, rows: Any, flat: Any, weight: Any, bias: Any, sizes: Any) -> Any:
    rows = op.Reshape(rows, flat)
    return op.Reshape(op.Gemm(rows, weight, bias, alpha=1.0, beta=1.0, _allow_other_attributes=False), sizes)


def _is_restored(context: Any, rows: ir.Value, weight: ir.Value, **_: ir.Value) -> bool:
    array, (output,) = weight_of(weight), context.output_values
    if array is None or rows.shape is None or output.shape is None:
        return False
    return tuple(output.shape) == (*rows.shape[:-1], array.shape[1])


def _product(op: Any, rows: ir.Value, weight: ir.Value, bias: ir.Value, **_: ir.Value) -> Any:
    product = op.MatMul(rows, weight)
    product.dtype = ir.DataType.FLOAT
    return op.Add(product, bias)


FLAT_PRODUCTS = RewriteRuleSet([RewriteRule(_flattened, _product, _is_restored)])
