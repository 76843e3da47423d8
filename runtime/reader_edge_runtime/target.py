"""A model that runs: what decoding and measuring know of it, whatever engine, device or wire is behind it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.package.manifest import Manifest


class Pass(NamedTuple):
    """A forward pass over B draft trees, and what is wanted of it. Plain values, so that it can cross a process.

    first_slot: tree b is scored against slot first_slot + b of the cache.
    rows: of each tree, the nodes to report on. R is the longest of them; shorter ones repeat their last.
    num_kept: so many first nodes of each tree, or all of a smaller one, are a chain that will be committed whatever the
    pass says. It moves recurrent states over them for good; a pass whose nodes may all be dropped keeps none.
    wants_hidden_states, wants_layer_states: refused with ProviderError by a target whose graph does not report them.
    num_before: so many first nodes of each tree have KV rows from passes before, behind the committed ones; the others
    alone are scored, and reported on. Of models without recurrent layers.
    """

    first_slot: int
    trees: Sequence[DraftTree]
    rows: Sequence[Sequence[int]]
    wants_logits: bool = False
    wants_log_sum_exp: bool = False
    wants_hidden_states: bool = False
    num_kept: int = 0
    wants_layer_states: bool = False
    num_before: int = 0


class ForwardResult(NamedTuple):
    """What a pass says of the rows asked for: B trees, R rows each.

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
        """`logits` of a pass that asked for them; ValueError where it did not."""
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
        """What this pass said of nodes of tree b, whose root is at this position of its text. Raises DraftError."""
        n, hidden_states = len(rows), None if self.hidden_states is None else self.hidden_states[b, : len(rows)].copy()
        layer_states = None if self.layer_states is None else self.layer_states[:, b, : len(tree)].swapaxes(0, 1).copy()
        said = self.top_ids[b, :n], self.top_logits[b, :n]
        return ScoredTree(tree, rows, root, *said, vocab_size, hidden_states, layer_states)


class Target(Protocol):
    """A loaded model.

    provider: what runs the graph, e.g. "CPUExecutionProvider". is_native: whether native kernels run parts of it.
    instructions: the instruction set of those kernels, such as "avx512-vnni"; None without them.
    min_rows: nodes that a pass has at least, over all its trees; see `with_min_rows`.
    pass_sizes: nodes that a pass's trees are padded to, powers of two; empty where they are as wide as they are.
    pass_facts: versions and devices that times and bits of passes depend on, beside processor, threads and the above.
    """

    manifest: Manifest
    provider: str
    is_native: bool
    instructions: str | None
    min_rows: int
    pass_sizes: tuple[int, ...]
    pass_facts: tuple[str, ...]

    def new_cache(self, num_slots: int, capacity: int) -> Cache:
        """An empty cache where this target's passes can write it. Raises ConfigError where memory is short."""
        ...

    def prefill_chunk(self, past: int) -> int:
        """How many tokens of a prompt to score at once after `past` others."""
        ...

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        """Score all nodes of B trees.

        Writes each tree's KV rows at [length, length + N) of its slot without committing them, and makes room for
        them first. cache: one of this target's `new_cache`. Raises ProviderError.
        """
        ...

    def with_min_rows(self, min_rows: int) -> "Target":
        """This model with passes filled up to so many rows: kernels for a single row may give other bits."""
        ...

    def release_memory(self) -> None:
        """Let go of memory that only passes so far needed."""


class PassBehind(Protocol):
    """A pass that was sent directly behind another: either `result` is called, or `drop`; `drop` may be at any time."""

    def result(self) -> ForwardResult:
        """Wait for what it says. Raises ProviderError."""
        ...

    def drop(self) -> None:
        """Let it be: nobody waits for it, and the next pass writes over its rows."""
        ...


@runtime_checkable
class TravellingTarget(Target, Protocol):
    """A target whose passes take their way over links. While one is awaited, others may begin: see `turns`."""

    @property
    def links_s(self) -> float:
        """Seconds of a pass of one node in which no box works for it; 0 where that is not known."""
        ...

    @property
    def num_stages(self) -> int:
        """Boxes that a pass goes through in turn: with so many passes under way, none of them need wait."""
        ...

    @property
    def num_lanes(self) -> int:
        """Passes that fill boxes and links, so that more of them together would wait for each other."""
        ...

    def forward_two(self, cache: Cache, first: Pass, second: Pass) -> tuple[ForwardResult, PassBehind]:
        """Score the first nodes of a tree, and have the boxes work on a second pass meanwhile.

        second: over one tree, whose `num_before` first nodes are the first pass's. Of the cache, only rows of the first
        pass may be committed unless the second's result was taken. Raises ProviderError.
        """
        ...

    def take_in(self) -> None:
        """Wait until one of the passes under way has come, failed or was lost."""
        ...
