"""The interface of a model that runs forward passes (Target, Pass), whatever engine, device or network is behind it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from reader_edge_runtime.adapters.adapter_table import AdapterTable
from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import Manifest


class ImageRows(NamedTuple):
    """What a pass over one chain of N tokens of a prompt with images reads besides their ids.

    indices: int64 (N,), of each the row of features that it has in place of its embedding; -1 of a text's. features:
    float32 (K, `ImagesPart.row_size`), K at least 1. positions: int64 (3, N), rotary ones of time, row and column.
    seen_whole: from where to where nodes are of one image, all of which each of them sees, where the model's layers do
    so.
    """

    indices: Int64Array
    features: Float32Array
    positions: Int64Array
    seen_whole: Sequence[tuple[int, int]] = ()


class Pass(NamedTuple):
    """A forward pass over B draft trees, and what is wanted of it. Plain values, so that it can cross a process.

    first_slot: tree b is scored against slot first_slot + b of the cache.
    rows: of each tree, the nodes to report on. R is the longest of them; shorter ones repeat their last.
    num_kept: so many first nodes of each tree, or all of a smaller one, are a chain that will be committed whatever the
    pass says. It moves recurrent states over them for good; a pass whose nodes may all be dropped keeps none.
    wants_hidden_states, wants_layer_states: refused with ProviderError by a target whose graph does not report them.
    num_before: so many first nodes of each tree have KV rows from passes before, behind the committed ones; the others
    alone are scored, and reported on. Of models without recurrent layers.
    images: of a model that sees images, what a chain of a prompt with some reads of them. shifts: of other passes of
    such a model, what a row's number is moved by to give its rotary position, for each tree; empty: by nothing.
    adapter_ids: of each tree, that of its adapter in the target's table, -1 for none; empty: none has any. Only for an
    `AdaptedTarget`.
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
    images: ImageRows | None = None
    shifts: Sequence[int] = ()
    adapter_ids: Sequence[int] = ()


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


@runtime_checkable
class AdaptedTarget(Target, Protocol):
    """A target whose passes read adapters. adapters: changed between passes, by who runs them."""

    adapters: AdapterTable


class InFlightPass(Protocol):
    """A pass that was sent directly behind another: either `result` is called, or `drop`; `drop` may be at any time."""

    def result(self) -> ForwardResult:
        """Wait for what it says. Raises ProviderError."""
        ...

    def drop(self) -> None:
        """Let it be: nobody waits for it, and the next pass writes over its rows."""
        ...


@runtime_checkable
class PipelinedTarget(Target, Protocol):
    """A target whose passes take their way over links. While one is awaited, others may begin: see `yield_turn`."""

    @property
    def links_s(self) -> float:
        """Seconds of a pass of one node in which no box works for it; 0 where that is not known."""
        ...

    @property
    def num_stages(self) -> int:
        """Boxes that a pass goes through in turn: with so many passes in flight, none of them need wait."""
        ...

    @property
    def num_microbatches(self) -> int:
        """Passes that fill boxes and links, so that more of them together would wait for each other."""
        ...

    def forward_two(self, cache: Cache, first: Pass, second: Pass) -> tuple[ForwardResult, InFlightPass]:
        """Score the first nodes of a tree, and have the boxes work on a second pass meanwhile.

        second: over one tree, whose `num_before` first nodes are the first pass's. Of the cache, only rows of the first
        pass may be committed unless the second's result was taken. Raises ProviderError.
        """
        ...

    def take_in(self) -> None:
        """Wait until one of the passes in flight has come, failed or was lost."""
        ...
