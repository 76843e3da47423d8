"""A product's columns, cut into the heads of query, key and value, the first two rotated: the operator RotaryHeads.

And attention's heads, side by side as the next product wants them: nothing to turn there and back for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

from reader_edge_export.fusion.matching import Cut, consumers, cut_of, producer
from reader_edge_export.onnx_graph.graph_editor import GraphEditor, weight_of
from reader_edge_export.operators.definitions import rotary_heads

_MERGING = (  # they write heads side by side
    *("IntegerAttention", "IntegerAttention16", "Int8CacheAttention"),
    *("IntegerAttentionSinks", "IntegerAttention16Sinks", "Int8CacheAttentionSinks"),
)
_ROTARY_STEP = 16  # ONNX Runtime turns eight pairs of components at a time, and rounds what is left over otherwise


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
            _fuse(editor, *layer)


def _fuse(editor: GraphEditor, query: _Heads, key: _Heads, value: _Heads) -> None:
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
