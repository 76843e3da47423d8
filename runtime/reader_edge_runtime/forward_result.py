"""The result of a pass: logits or best successors of the nodes, and states that were requested."""

from typing import NamedTuple

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree


class ForwardResult(NamedTuple):
    """What a pass gives for the rows requested: B trees, R rows each.

    top_ids, top_logits: int64 and float32 (B, R, K), the best successors, best first, equals by id; they are yours.
    logits: float32 (B, R, V), valid until the target's next pass; None unless wanted.
    log_sum_exp: float32 (B, R), the logarithm of each row's summed exponentials. None unless wanted, and where the
        graph does not compute it; then the logits come instead.
    hidden_states: float32 (B, R, E), valid until the next pass; None unless wanted.
    layer_states: float32 (J, B, N, E), of all nodes, each of the manifest's `state_ids`; as hidden_states.
    """

    top_ids: Int64Array
    top_logits: Float32Array
    logits: Float32Array | None = None
    log_sum_exp: Float32Array | None = None
    hidden_states: Float32Array | None = None
    layer_states: Float32Array | None = None

    @property
    def wanted_logits(self) -> Float32Array:
        """`logits` of a pass that requested them; ValueError where it did not."""
        if self.logits is None:
            raise ValueError("this pass did not ask for logits")
        return self.logits

    def from_row(self, first: int) -> "ForwardResult":
        """The result without its first rows."""
        logits, log_sum_exp, hidden_states = (None if array is None else array[:, first:] for array in self[2:5])
        rows = self.top_ids[:, first:], self.top_logits[:, first:], logits, log_sum_exp, hidden_states
        return ForwardResult(*rows, self.layer_states)

    def joined(self, other: "ForwardResult") -> "ForwardResult":
        """This result, and behind its rows those of another pass of which the same was wanted."""
        best = np.concatenate([self.top_ids, other.top_ids], 1), np.concatenate([self.top_logits, other.top_logits], 1)
        wanted = (
            None if own is None or others is None else np.concatenate([own, others], axis)
            for own, others, axis in zip(self[2:], other[2:], (1, 1, 1, 2), strict=True)
        )
        return ForwardResult(*best, *wanted)

    def log_probability(self, b: int, row: int, token_id: int) -> float:
        """Natural logarithm of what the target gives a token after row (b, row), at temperature 1.

        From log_sum_exp for one of the best successors, else from the logits; ValueError where neither was wanted.
        """
        found = np.flatnonzero(self.top_ids[b, row] == token_id)
        if self.log_sum_exp is not None and found.size:
            return float(self.top_logits[b, row, found[0]] - self.log_sum_exp[b, row])
        logits = self.wanted_logits[b, row]
        best = logits.max()
        return float(logits[token_id] - best - np.log(np.exp(logits - best).sum()))

    def top_probabilities(self, b: int, row: int) -> Float32Array:
        """What the target gives its best successors after row (b, row), float32 (K,), at temperature 1.

        From log_sum_exp, else from the logits; ValueError where neither was wanted. No numbers where those are none.
        """
        top_logits = self.top_logits[b, row]
        with np.errstate(all="ignore"):
            if self.log_sum_exp is not None:
                probabilities: Float32Array = np.exp(top_logits - self.log_sum_exp[b, row])
            else:
                logits = self.wanted_logits[b, row]
                probabilities = np.exp(top_logits - top_logits[0]) / np.exp(logits - top_logits[0]).sum()
        return probabilities

    def scored(self, b: int, tree: DraftTree, rows: range, root: int, vocab_size: int) -> ScoredTree:
        """This pass's scores of nodes of tree b, whose root is at this position of its text. Raises DraftError."""
        n, hidden_states = len(rows), None if self.hidden_states is None else self.hidden_states[b, : len(rows)].copy()
        layer_states = None if self.layer_states is None else self.layer_states[:, b, : len(tree)].swapaxes(0, 1).copy()
        best = self.top_ids[b, :n], self.top_logits[b, :n]
        return ScoredTree(tree, rows, root, *best, vocab_size, hidden_states, layer_states)
