"""x * cos + rotate_half(x) * sin becomes RotaryEmbedding (opset 23)."""

import functools
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

from reader_edge_export.fusion.matching import number_of, producer
from reader_edge_export.onnx_graph.graph_editor import GraphEditor, weight_of

_HEADS_FIRST = [0, 2, 1, 3]  # and back


def fuse_rotary(editor: GraphEditor) -> None:
    """Fuse every rotary embedding whose two halves turn by the same angles."""
    for node in list(editor.graph):
        if node.op_type == "MatMul":
            _spell_out(editor, node)
    # All layers share the angles, so nodes on the way may have other readers.
    rule = RewriteRule(_rotary, functools.partial(_fused, editor), _is_rotary, remove_nodes=False)
    RewriteRuleSet([rule], commute=True).apply_to_model(editor.model)
    RewriteRuleSet([RewriteRule(_transposed_twice, lambda op, x, **_: op.Identity(x), _is_back)]).apply_to_model(
        editor.model
    )


def _spell_out(editor: GraphEditor, product: ir.Node) -> None:
    """Frequencies (1, D / 2, 1) times positions (B, 1, N) sum nothing, and must be no MatMul: where GPUs round the
    factors of one to 11 bits, as they do by default, positions beyond 2,048 would fall together."""
    expanded = producer(product.inputs[0], "Expand")  # for the batch, which the product does by itself
    frequencies = expanded.inputs[0] if expanded is not None else product.inputs[0]
    array = weight_of(frequencies)
    if array is not None and array.ndim == 3 and array.shape[::2] == (1, 1):
        editor.replace(product, [editor.op("Mul", [frequencies, product.inputs[1]])])


def _rotary(op: Any, x: Any, middle: Any, half: Any, cosines: Any, sines: Any, axis: Any) -> Any:
    first = op.Slice(x, [0], half, _allow_other_inputs=True)
    second = op.Slice(x, middle, _allow_other_inputs=True)
    straight = op.Mul(x, op.Unsqueeze(cosines, axis))
    rotated = op.Concat(op.Neg(second), first)
    return op.Add(straight, op.Mul(rotated, op.Unsqueeze(sines, axis)))


def _is_rotary(
    context: Any, x: ir.Value, middle: ir.Value, cosines: ir.Value, sines: ir.Value, axis: ir.Value, **_: ir.Value
) -> bool:
    size = x.shape[-1] if x.shape is not None and len(x.shape) == 4 else None
    is_halved = isinstance(size, int) and number_of(middle) == size / 2 and number_of(axis) in (1, 2)
    return is_halved and _is_repeated(cosines, "Cos") and _is_repeated(sines, "Sin")


def _fused(
    editor: GraphEditor,
    op: Any,
    x: ir.Value,
    middle: ir.Value,
    cosines: ir.Value,
    sines: ir.Value,
    axis: ir.Value,
    **_: ir.Value,
) -> Any:
    halves = []
    for angles in (cosines, sines):  # (B, N, D) -> (B, N, D / 2)
        assert angles.shape is not None
        half = op.Slice(angles, editor.int64s(0), middle, editor.int64s(-1))
        half.dtype, half.shape = ir.DataType.FLOAT, ir.Shape([*angles.shape[:-1], int(number_of(middle) or 0)])
        halves.append(half)
    if number_of(axis) == 1:  # the heads', behind the batch
        return op.RotaryEmbedding(x, *halves)
    return op.Transpose(op.RotaryEmbedding(op.Transpose(x, perm=_HEADS_FIRST), *halves), perm=_HEADS_FIRST)


def _transposed_twice(op: Any, x: Any, there: Any, back: Any) -> Any:
    return op.Transpose(op.Transpose(x, perm=there), perm=back)


def _is_back(context: Any, there: ir.Attr, back: ir.Attr, **_: ir.Value) -> bool:
    return list(there.as_ints()) == list(back.as_ints()) == _HEADS_FIRST


def _is_repeated(angles: ir.Value, function: str) -> bool:
    """Whether these are the cosines or sines (B, N, D) of angles whose second half repeats their first."""
    node = producer(angles, function, "Mul")
    if node is not None and node.op_type == "Mul":  # scaled rotary embeddings, or a scale of one
        node = producer(node.inputs[0], function)
    repeated = producer(node.inputs[0], "Concat") if node is not None else None
    return repeated is not None and len(repeated.inputs) == 2 and repeated.inputs[0] is repeated.inputs[1]
