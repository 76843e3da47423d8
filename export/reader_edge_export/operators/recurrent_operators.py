"""Operators of recurrent layers over draft trees. What they compute is defined in recurrent_definitions.py.

A tree hangs on a committed state. Pending rows, capsules of nodes that were accepted before, are replayed on it first;
then the nodes come, by index. The first num_kept nodes are a chain, and the state behind them is the new committed one.
All others hang on the last of those, or on a later node: a parent before it stands for it, so that padding may name any
node. Every path takes the same steps in the same order: bits never depend on how a state was reached.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.operators.definitions import OPERATOR_DOMAIN, define
from reader_edge_export.operators.recurrent_definitions import TREE_CONV, TREE_DELTA, TREE_SCAN


@dataclass(frozen=True, slots=True)
class TreeInputs:
    """The trees of a pass: parents (B, N), each before its node, -1 for none; num_kept and num_pending (B,); int64.

    The first num_kept nodes are a chain, and their states are committed; so many pending rows are replayed first.
    """

    parents: ir.Value
    num_kept: ir.Value
    num_pending: ir.Value


@dataclass(frozen=True, slots=True)
class StateInputs:
    """What a layer remembers: its committed state (B, ...), and pending (B, P, C), capsules that are not in it yet."""

    state: ir.Value
    pending: ir.Value


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What a recurrent operator gives: output (B, N, ...), present, the state it commits, capsules (B, N, C).

    A node's capsule, as a row of `pending`, replays it.
    """

    output: ir.Value
    present: ir.Value
    capsules: ir.Value


def tree_conv(
    editor: GraphEditor, rows: ir.Value, weight: ir.Value, bias: ir.Value | None, tree: TreeInputs, state: StateInputs
) -> Recurrence:
    """A causal convolution of each channel: rows (B, N, C), weight (C, K) with K > 1, bias (C,) -> output (B, N, C).

    The state (B, K - 1, C) is the last rows, the oldest first; capsules are the rows.
    """
    define(editor, TREE_CONV)
    inputs = [rows, weight, tree.parents, tree.num_kept, state.state, state.pending, tree.num_pending]
    output, present = editor.op_multi("TreeConv", inputs, 2, domain=OPERATOR_DOMAIN)
    if bias is not None:
        output = editor.op("Add", [output, bias])
    return Recurrence(output, present, rows)


def tree_delta(
    editor: GraphEditor,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    log_decay: ir.Value,
    beta: ir.Value,
    tree: TreeInputs,
    state: StateInputs,
) -> Recurrence:
    """The gated delta rule: query and key (B, N, Hk, Dk), value (B, N, Hv, Dv), log_decay and beta (B, N, Hv).

    Query and key come normalised and scaled; head h of value has key head h // (Hv / Hk). The output is (B, N, Hv, Dv),
    the state (B, Hv, Dk, Dv); a capsule is [key (Hk Dk) | value (Hv Dv) | decay (Hv) | beta (Hv)].
    """
    define(editor, *TREE_DELTA)
    return _recurrence(editor, "TreeDelta", [query, key, value, log_decay, beta], tree, state)


def tree_mamba2(
    editor: GraphEditor,
    x: ir.Value,
    dt: ir.Value,
    a: ir.Value,
    b: ir.Value,
    c: ir.Value,
    d: ir.Value,
    tree: TreeInputs,
    state: StateInputs,
) -> Recurrence:
    """Mamba2's recurrence: x (B, N, H, P), dt (B, N, H) as it is used, a (H,) negative, b and c (B, N, G, S), d (H,).

    Head h has group h // (H / G). The output is (B, N, H, P), the state (B, H, S, P); a capsule is
    [b (G S) | dt x (H P) | exp(dt a) (H)].
    """
    define(editor, *TREE_SCAN)
    last = editor.int64s(-1)
    value = editor.op("Mul", [x, editor.op("Unsqueeze", [dt, last])])
    log_decay = editor.op("Mul", [dt, a])
    scan = _recurrence(editor, "TreeScan", [c, b, value, log_decay], tree, state)
    passed_by = editor.op("Mul", [x, editor.op("Unsqueeze", [d, last])])
    return Recurrence(editor.op("Add", [scan.output, passed_by]), scan.present, scan.capsules)


def _recurrence(
    editor: GraphEditor, operator: str, inputs: Sequence[ir.Value], tree: TreeInputs, state: StateInputs
) -> Recurrence:
    inputs = [*inputs, tree.parents, tree.num_kept, state.state, state.pending, tree.num_pending]
    return Recurrence(*editor.op_multi(operator, inputs, 3, domain=OPERATOR_DOMAIN))
