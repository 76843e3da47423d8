"""The marker operators that a trace leaves where the exported graph will differ from the source, one at each place.

    reader::TreeAttention(q, k, v, past_key, past_value, write_pos, mask[, sinks])
        -> (output, present_key, present_value)
    reader::SharedAttention(q, present_key, present_value, mask) -> output: over what another layer left
    reader::Linear<parameter>(rows) -> product
    reader::Embedding<parameter>(ids) -> rows
    reader::ExpertLinear<parameter, num_ranks>(rows, experts) -> products
    reader::LogitHead<parameter>(hidden, rows[, bias]) -> logits
    reader::TreeConv, TreeDelta, TreeMamba2(parents, num_kept, num_pending, state, pending, ...) -> (output, present,
        capsule): the others are the inputs of the operators of `recurrent_operators`

Matrices are named and stay out of the trace. `insert_matrices` gives the graph Linear and Embedding as standard
operators, the head and experts their weights: reader::LogitHead(hidden, rows, weight[, bias]),
reader::ExpertLinear(rows, experts, weight). The lowering replaces the others.
Shapes: q and output (B, Hq, N, D); k, v (B, H, N, D); past and present (B, H, S, D); write_pos (B,); mask (B, 1, N, M);
sinks (Hq,); hidden (B, N, E); weight (V, E); rows (B, R); bias (V,). Of experts, rows (T, k or 1, K), each row once for
each of the k experts that it is sent to, or alike for all; experts (T, k); products (T, k, J); weight (X, J, K).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

MARKER_DOMAIN = "reader"
TREE_ATTENTION, SHARED_ATTENTION = "TreeAttention", "SharedAttention"
TREE_CONV, TREE_DELTA, TREE_MAMBA2 = "TreeConv", "TreeDelta", "TreeMamba2"
RECURRENCES = (TREE_CONV, TREE_DELTA, TREE_MAMBA2)
LINEAR = "Linear"
EXPERT_LINEAR = "ExpertLinear"
EMBEDDING = "Embedding"
LOGIT_HEAD = "LogitHead"
LAYER_STATE = "layer_state."  # what names of outputs begin with that are states between layers
PARAMETER = "parameter"  # attribute: the name of a matrix
NUM_RANKS = "num_ranks"  # attribute: k
ATTENTION_SIZES = ("num_heads", "kv_heads", "head_dim")  # attributes of both kinds of attention


@dataclass(frozen=True, slots=True)
class TreeAttentionMarker:
    """A TreeAttention node, read. softcap: scores become softcap * tanh(scores / softcap); 0 is off.

    Of a SharedAttention, past_key and past_value are what another layer has written already: key, value and write_pos
    are None.
    sinks: scores of each query head that no value goes with: its softmax adds up to less than one. None without.
    """

    node: ir.Node
    query: ir.Value
    key: ir.Value | None
    value: ir.Value | None
    past_key: ir.Value
    past_value: ir.Value
    write_pos: ir.Value | None
    mask: ir.Value
    scale: float
    softcap: float
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sinks: ir.Value | None = None

    @property
    def group_size(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def is_latent(self) -> bool:
        """Whether values are the keys, and kept once."""
        return self.past_key is self.past_value


@dataclass(frozen=True, slots=True)
class RecurrenceMarker:
    """A TreeConv, TreeDelta or TreeMamba2 node, read. inputs: the operator's own."""

    node: ir.Node
    parents: ir.Value
    num_kept: ir.Value
    num_pending: ir.Value
    state: ir.Value
    pending: ir.Value
    inputs: tuple[ir.Value, ...]


@dataclass(frozen=True, slots=True)
class LogitHeadMarker:
    """A LogitHead node, read."""

    node: ir.Node
    hidden: ir.Value
    weight: ir.Value
    rows: ir.Value
    bias: ir.Value | None


def attention_markers(graph: ir.Graph) -> Iterator[TreeAttentionMarker]:
    """The attention markers in execution order; the graph may be edited meanwhile."""
    for node in list(graph):
        if node.op_type not in (TREE_ATTENTION, SHARED_ATTENTION):
            continue
        key = value = write_pos = None
        if node.op_type == TREE_ATTENTION:
            query, key, value, past_key, past_value, write_pos, mask, *sinks = _present(node)
        else:
            query, past_key, past_value, mask, *sinks = _present(node)
        scale, softcap = (node.attributes[name].as_float() for name in ("scale", "softcap"))
        num_heads, num_kv_heads, head_dim = (node.attributes[name].as_int() for name in ATTENTION_SIZES)
        sizes = num_heads, num_kv_heads, head_dim
        inputs = query, key, value, past_key, past_value, write_pos, mask
        yield TreeAttentionMarker(node, *inputs, scale, softcap, *sizes, sinks[0] if sinks else None)


def recurrence_markers(graph: ir.Graph) -> Iterator[RecurrenceMarker]:
    """The markers of recurrent layers in execution order; the graph may be edited meanwhile."""
    for node in list(graph):
        if node.op_type in RECURRENCES and node.domain == MARKER_DOMAIN:
            parents, num_kept, num_pending, state, pending, *inputs = _present(node)
            yield RecurrenceMarker(node, parents, num_kept, num_pending, state, pending, tuple(inputs))


@dataclass(frozen=True, slots=True)
class ExpertLinearMarker:
    """An ExpertLinear node that has its weight, read."""

    node: ir.Node
    rows: ir.Value
    experts: ir.Value
    weight: ir.Value
    num_ranks: int


def expert_markers(graph: ir.Graph) -> Iterator[ExpertLinearMarker]:
    """The products by experts in execution order; the graph may be edited meanwhile."""
    for node in list(graph):
        if node.op_type == EXPERT_LINEAR and node.domain == MARKER_DOMAIN:
            rows, experts, weight = _present(node)
            yield ExpertLinearMarker(node, rows, experts, weight, node.attributes[NUM_RANKS].as_int())


def logit_head_marker(graph: ir.Graph) -> LogitHeadMarker:
    """The graph's only LogitHead."""
    node = next(node for node in graph if node.op_type == LOGIT_HEAD)
    hidden, rows, weight, *bias = _present(node)
    return LogitHeadMarker(node, hidden, weight, rows, bias[0] if bias else None)


def _present(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


class Outputs(NamedTuple):
    """A marker's outputs by its inputs. made: while it is traced. types: in the graph, None where nothing is known."""

    made: Callable[..., tuple[torch.Tensor, ...]]
    types: Callable[..., tuple[Any, ...]]

    @classmethod
    def like(cls, *numbers: int) -> "Outputs":
        """Outputs of the shapes of these inputs."""
        return cls(
            lambda *inputs: tuple(inputs[number].clone() for number in numbers),
            lambda *inputs: tuple(inputs[number].type() for number in numbers),
        )

    @classmethod
    def product(cls, size: int) -> "Outputs":
        """One output: rows of so many numbers in place of those of a row."""
        return cls(lambda rows: (torch.zeros(*rows.shape[:-1], size),), lambda rows: (_sized(rows, -1, size),))

    @classmethod
    def looked_up(cls, size: int) -> "Outputs":
        """One output: so many numbers for each id."""
        return cls(lambda ids: (torch.zeros(*ids.shape, size),), lambda ids: (_sized(ids, 0, size),))

    @classmethod
    def chosen(cls, *sizes: int | None) -> "Outputs":
        """Rows of the first input for each number of the second, of these sizes in the graph."""
        return cls(
            lambda rows, numbers, *_: (rows.new_zeros(*numbers.shape, sizes[-1]),),
            lambda rows, *_: (rows.type().with_sizes([*sizes]),),
        )


def mark(kind: str, outputs: Outputs, *inputs: torch.Tensor, **attributes: float | str) -> tuple[torch.Tensor, ...]:
    """Leave a marker. attributes: named as torch.onnx wants them, with their types behind."""
    return _apply(kind, attributes, outputs, *inputs)


class _Marker(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kind: str, attributes: dict[str, Any], outputs: Outputs, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return outputs.made(*inputs)

    @staticmethod
    def symbolic(g: Any, kind: str, attributes: dict[str, Any], outputs: Outputs, *inputs: Any) -> Any:
        types = outputs.types(*inputs)
        values = g.op(f"{MARKER_DOMAIN}::{kind}", *inputs, **attributes, outputs=len(types))
        for value, each in zip(values if len(types) > 1 else (values,), types, strict=True):
            if each is not None:
                value.setType(each)
        return values


_apply: Callable[..., tuple[torch.Tensor, ...]] = _Marker.apply


def _sized(value: Any, num_more: int, size: int) -> Any:
    """The type of so many axes more than a value's and, behind them, one of this size."""
    rank = value.type().dim()
    return (
        None if rank is None else value.type().with_dtype(torch.float32).with_sizes([None] * (rank + num_more) + [size])
    )
