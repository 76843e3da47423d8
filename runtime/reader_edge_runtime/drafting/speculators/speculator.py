"""A speculator that runs: what drafting knows of it, whatever executes it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.package.speculator_part import SpeculatorPart


class SpeculatorResult(NamedTuple):
    """What a speculator says of nodes that it scored: B trees, R of the nodes each, padded.

    top_ids, probabilities: int64 and float32 (B, R, K), its likeliest successors, likeliest first.
    next_states: float32 (B, N, E) of all N nodes, what their children are scored from.
    All are valid until its next pass.
    """

    top_ids: Int64Array
    probabilities: Float32Array
    next_states: Float32Array


class TreeStep(NamedTuple):
    """A tree that a speculator has scored in part.

    tree: below the last token whose row is committed, its root. num_scored: first nodes, the root at least, whose rows
    earlier passes have left behind the committed ones. states: float32 (n, E), `next_states` of the parent of each of
    the n others.
    """

    tree: DraftTree
    num_scored: int
    states: Float32Array


class Speculator(Protocol):
    """A loaded speculator of a package.

    part: what the package says of it. max_context: tokens of a text. state_size: numbers of all states of the target
    that it reads of a token.
    """

    part: SpeculatorPart
    max_context: int
    state_size: int

    def new_cache(self, num_slots: int, capacity: int) -> Cache:
        """An empty cache. Row r of a slot is of the (r + 1)th token whose rows it has, wherever the text began."""
        ...

    def catch_up(
        self, cache: Cache, first_slot: int, further: Sequence[Sequence[int]], states: Sequence[Float32Array]
    ) -> SpeculatorResult:
        """Write rows of further tokens of the texts in some slots, without committing them; tells of each one's last.

        states: of each text, float32 (n, state_size), what the target has of the token before each of the n tokens.
        Raises ProviderError, and ConfigError where memory is short.
        """
        ...

    def step(self, cache: Cache, first_slot: int, steps: Sequence[TreeStep]) -> SpeculatorResult:
        """Score the nodes of trees that are not scored yet, and tell of each; their rows are never committed.

        Raises as `catch_up`.
        """
        ...
