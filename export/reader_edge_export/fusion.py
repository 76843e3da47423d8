"""Chains of small operators become the one operator that they spell out, for providers that pay per operator."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

from reader_edge_export.onnx_graph.graph_editor import GraphEditor, weight_of
from reader_edge_export.operators.definitions import rotary_heads, swiglu

_HEADS_FIRST = [0, 2, 1, 3]  # and back
_MERGING = (  # they write heads side by side
    *("IntegerAttention", "IntegerAttention16", "Int8CacheAttention"),
    *("IntegerAttentionSinks", "IntegerAttention16Sinks", "Int8CacheAttentionSinks"),
)
_ROTARY_STEP = 16  # ONNX Runtime turns eight pairs of components at a time, and rounds what is left over otherwise


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes a value, if it is one of `op_types`."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in op_types else None


def consumers(value: ir.Value, op_type: str) -> Iterator[ir.Node]:
    """The nodes of a type that read a value; the graph may be edited meanwhile."""
    for use in list(value.uses()):
        if use.node.op_type == op_type:
            yield use.node


def number_of(value: ir.Value | None) -> float | None:
    """The number in a constant of one element."""
    array = weight_of(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def other_input(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The input of a two-input node beside `value`."""
    others = [side for side in node.inputs if side is not value]
    return others[0] if len(node.inputs) == 2 and len(others) == 1 else None


@dataclass(frozen=True, slots=True)
class Cut:
    """Elements [begin, end) of a value's last axis, of `size` elements."""

    source: ir.Value
    size: int
    begin: int
    end: int


def cut_of(value: ir.Value | None) -> Cut | None:
    """What a value is a run of, where a Split or a Slice along the last axis made it."""
    node = producer(value, "Split", "Slice")
    source = node.inputs[0] if node is not None else None
    size = source.shape[-1] if source is not None and source.shape is not None else None
    if value is None or node is None or source is None or not isinstance(size, int):
        return None
    bounds = _split_bounds(node, value) if node.op_type == "Split" else _slice_bounds(node, size)
    return Cut(source, size, *bounds) if bounds is not None else None


def _split_bounds(split: ir.Node, part: ir.Value) -> tuple[int, int] | None:
    widths = weight_of(split.inputs[1]) if len(split.inputs) > 1 else None
    if widths is None or split.attributes["axis"].as_int() != -1:
        return None
    ends = widths.cumsum().tolist()
    index = split.outputs.index(part)
    return ends[index] - int(widths[index]), ends[index]


def _slice_bounds(cut: ir.Node, size: int) -> tuple[int, int] | None:
    begin, end, axis, step = ([*map(number_of, cut.inputs[1:]), 1, 1])[:4]
    assert cut.inputs[0] is not None
    assert cut.inputs[0].shape is not None
    is_last = axis in (-1, len(cut.inputs[0].shape) - 1)
    if begin is None or end is None or begin < 0 or end < 0 or not is_last or step != 1:
        return None
    return int(begin), min(int(end), size)


def _norm(op: Any, x: Any, epsilon: Any, weight: Any) -> Any:
    mean = op.ReduceMean(op.Pow(x, 2.0), [-1])
    return op.Mul(op.Mul(x, op.Div(1.0, op.Sqrt(op.Add(mean, epsilon)))), weight)


def _is_norm(context: Any, epsilon: ir.Value, weight: ir.Value, **_: ir.Value) -> bool:
    array = weight_of(weight)
    return number_of(epsilon) is not None and array is not None and array.ndim == 1


def _fused_norm(op: Any, x: ir.Value, epsilon: ir.Value, weight: ir.Value) -> Any:
    return op.RMSNormalization(x, weight, axis=-1, epsilon=number_of(epsilon), stash_type=int(ir.DataType.FLOAT))


def _centred(op: Any, x: Any, epsilon: Any, weight: Any) -> Any:
    return _norm(op, op.Sub(x, op.ReduceMean(x, [-1])), epsilon, weight)


def _fused_centred(op: Any, x: ir.Value, epsilon: ir.Value, weight: ir.Value) -> Any:
    return op.LayerNormalization(x, weight, axis=-1, epsilon=number_of(epsilon), stash_type=int(ir.DataType.FLOAT))


NORMS = RewriteRuleSet(
    [RewriteRule(_centred, _fused_centred, _is_norm), RewriteRule(_norm, _fused_norm, _is_norm)], commute=True
)


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


def fuse_swiglu(editor: GraphEditor) -> None:
    """Fuse every gated product whose gate and up lie side by side."""
    for node in editor.graph:
        if node.op_type == "Sigmoid":
            _fuse_gate(editor, node)


def _fuse_gate(editor: GraphEditor, sigmoid: ir.Node) -> None:
    """Follow one gate to the product with its other half, and replace what is on the way."""
    gate = cut_of(sigmoid.inputs[0])
    if gate is None or gate.begin != 0 or 2 * gate.end != gate.size:
        return
    for activated in consumers(sigmoid.outputs[0], "Mul"):
        is_gate = other_input(activated, sigmoid.outputs[0]) is sigmoid.inputs[0]
        for product in consumers(activated.outputs[0], "Mul") if is_gate else ():
            up = cut_of(other_input(product, activated.outputs[0]))
            if up is not None and up.source is gate.source and (up.begin, up.end) == (gate.end, gate.size):
                editor.replace(product, [swiglu(editor, gate.source)])
                return


@dataclass(frozen=True, slots=True)
class _Heads:
    """Part of a product as heads (B, H, N, D); last: the node that makes them, a RotaryEmbedding or a Transpose."""

    cut: Cut
    last: ir.Node
    num_heads: int
    head_size: int


def fuse_heads(editor: GraphEditor) -> None:
    """Fuse every layer whose query, key and value are one product and are rotated whole."""
    by_source: dict[ir.Value, list[_Heads]] = {}
    for heads in _all_heads(editor.graph):
        by_source.setdefault(heads.cut.source, []).append(heads)
    for parts in by_source.values():
        layer = sorted(parts, key=lambda part: part.cut.begin)
        if _is_layer(layer):
            _fuse_layer(editor, *layer)


def _fuse_layer(editor: GraphEditor, query: _Heads, key: _Heads, value: _Heads) -> None:
    _, cosines, sines = query.last.inputs
    assert cosines is not None
    assert sines is not None
    outputs = rotary_heads(editor, query.cut.source, cosines, sines, query.num_heads, key.num_heads)
    for part, output in zip((query, key, value), outputs, strict=True):
        editor.replace(part.last, [output])


def _is_layer(parts: list[_Heads]) -> bool:
    if len(parts) != 3:
        return False
    query, key, value = parts
    ends = [0, *(part.cut.end for part in parts)]
    return (
        [part.last.op_type for part in parts] == ["RotaryEmbedding", "RotaryEmbedding", "Transpose"]
        and [part.cut.begin for part in parts] == ends[:-1]
        and ends[-1] == value.cut.size
        and query.last.inputs[1:] == key.last.inputs[1:]
        and key.num_heads == value.num_heads
        and query.head_size == key.head_size == value.head_size
        and query.head_size % _ROTARY_STEP == 0
    )


def _all_heads(graph: ir.Graph) -> Iterator[_Heads]:
    for node in graph:
        if node.op_type != "Transpose" or tuple(node.attributes["perm"].as_ints()) != (0, 2, 1, 3):
            continue
        reshaped = producer(node.inputs[0], "Reshape")
        cut = cut_of(reshaped.inputs[0]) if reshaped is not None else None
        shape = reshaped.outputs[0].shape if reshaped is not None else None
        if cut is None or shape is None or len(shape) != 4:
            continue
        num_heads, head_size = shape[2:]
        if isinstance(num_heads, int) and isinstance(head_size, int):
            rotary = list(consumers(node.outputs[0], "RotaryEmbedding"))
            is_rotary = len(rotary) == 1 and not rotary[0].attributes
            yield _Heads(cut, rotary[0] if is_rotary else node, num_heads, head_size)


def _cut_and_joined(op: Any, merged: Any, heads: Any, sizes: Any, there: Any, back: Any) -> Any:
    cut = op.Transpose(op.Reshape(merged, heads), perm=there)
    return op.Reshape(op.Transpose(cut, perm=back), sizes)


def _is_merged(context: Any, merged: ir.Value, heads: ir.Value, sizes: ir.Value, there: ir.Attr, back: ir.Attr) -> bool:
    cut, joined = weight_of(heads), weight_of(sizes)
    if producer(merged, *_MERGING) is None or cut is None or joined is None:
        return False
    is_transposed_back = there.as_ints() == back.as_ints()
    return is_transposed_back and joined.tolist() in ([0, 0, -1], [0, 0, int(cut[2:].prod())])


# What cuts such an output into heads only to merge them again is left out.
MERGED_HEADS = RewriteRuleSet([RewriteRule(_cut_and_joined, lambda op, merged, **_: op.Identity(merged), _is_merged)])
