"""Norms that are spelled out become single operators, which sum in fp32 in any precision.

x / sqrt(mean(x^2) + epsilon) * weight is RMSNormalization (opset 23), and LayerNormalization where x is less its mean.
"""

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

from reader_edge_export.fusion.matching import number_of
from reader_edge_export.onnx_graph.graph_editor import weight_of


def _norm(op: Any, x: Any, epsilon: Any, weight: Any) -> Any:
    mean = op.ReduceMean(op.Pow(x, 2.0), [-1])
    return op.Mul(op.Mul(x, op.Div(1.0, op.Sqrt(op.Add(mean, epsilon)))), weight)


def _is_norm(context: Any, epsilon: ir.Value, weight: ir.Value, **_: ir.Value) -> bool:
    array = weight_of(weight)
    return number_of(epsilon) is not None and array is not None and array.ndim == 1


def _fused(op: Any, x: ir.Value, epsilon: ir.Value, weight: ir.Value) -> Any:
    return op.RMSNormalization(x, weight, axis=-1, epsilon=number_of(epsilon), stash_type=int(ir.DataType.FLOAT))


def _centred(op: Any, x: Any, epsilon: Any, weight: Any) -> Any:
    return _norm(op, op.Sub(x, op.ReduceMean(x, [-1])), epsilon, weight)


def _fused_centred(op: Any, x: ir.Value, epsilon: ir.Value, weight: ir.Value) -> Any:
    return op.LayerNormalization(x, weight, axis=-1, epsilon=number_of(epsilon), stash_type=int(ir.DataType.FLOAT))


NORMS = RewriteRuleSet(
    [RewriteRule(_centred, _fused_centred, _is_norm), RewriteRule(_norm, _fused, _is_norm)], commute=True
)
