"""A model that runs: what decoding and measuring know of it, whatever engine, device or wire is behind it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.manifest import Manifest

KvRows = npt.NDArray[Any]


class Pass(NamedTuple):
    """A forward pass over B draft trees, and what is wanted of it. Plain values, so that it can cross a process.

    first_slot: tree b is scored against slot first_slot + b of the cache.
    rows: of each tree, the nodes to report on. R is the longest of them; shorter ones repeat their last.
    num_kept: so many first nodes of each tree, or all of a smaller one, are a chain that will be committed whatever the
    pass says. It moves recurrent states over them for good; a pass whose nodes may all be dropped keeps none.
    wants_hidden_states: refused with ProviderError by a target whose graph does not report them.
    """

    first_slot: int
    trees: Sequence[DraftTree]
    rows: Sequence[Sequence[int]]
    wants_logits: bool = False
    wants_log_sum_exp: bool = False
    wants_hidden_states: bool = False
    num_kept: int = 0


class ForwardResult(NamedTuple):
    """What a pass says of the rows asked for: B trees, R rows each.

    top_ids, top_logits: int64 and float32 (B, R, K), the best successors, best first, equals by id; they are yours.
    logits: float32 (B, R, V), valid until the target's next pass; None unless wanted.
    log_sum_exp: float32 (B, R), the logarithm of each row's summed exponentials. None unless wanted, and where the
        graph does not compute it; then the logits come instead.
    hidden_states: float32 (B, R, E), valid until the next pass; None unless wanted.
    """

    top_ids: Int64Array
    top_logits: Float32Array
    logits: Float32Array | None = None
    log_sum_exp: Float32Array | None = None
    hidden_states: Float32Array | None = None

    @property
    def wanted_logits(self) -> Float32Array:
        """`logits` of a pass that asked for them; ValueError where it did not."""
        if self.logits is None:
            raise ValueError("this pass did not ask for logits")
        return self.logits

    def from_row(self, first: int) -> "ForwardResult":
        """The same of the rows from this one on."""
        logits, log_sum_exp, hidden_states = (None if array is None else array[:, first:] for array in self[2:])
        return ForwardResult(self.top_ids[:, first:], self.top_logits[:, first:], logits, log_sum_exp, hidden_states)

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
        return ScoredTree(tree, rows, root, self.top_ids[b, :n], self.top_logits[b, :n], vocab_size, hidden_states)


class TextState(NamedTuple):
    """What recurrent layers keep of a text, at one place of it.

    num_tokens: those that the states stand for. states: float32 (n, ...), of n layers that are alike, for each such
    group. pending: float32 (n, T, C), the capsules of the next T tokens of the text, for each group.
    """

    num_tokens: int
    states: tuple[Float32Array, ...]
    pending: tuple[Float32Array, ...]

    @property
    def end(self) -> int:
        """Tokens of the text until where it serves, pending ones included."""
        return self.num_tokens + len(self.pending[0][0])

    def until(self, length: int) -> "TextState":
        """The same without the capsules of tokens behind the first ones, so many."""
        if self.end <= length:
            return self
        num_pending = length - self.num_tokens
        return self._replace(pending=tuple(capsules[:, :num_pending] for capsules in self.pending))


class SlotContents(NamedTuple):
    """What a cache holds of a text of `length` tokens.

    rows: kv_dtype (2L, H, length, row size), of L layers that are alike, for each such group; bfloat16 as bits in
    uint16.
    states: where the text can be gone on from, in its order; none where no layer is recurrent.
    """

    length: int
    rows: tuple[KvRows, ...]
    states: tuple[TextState, ...] = ()


class Cache(ABC):
    """What a model keeps of several sequences, one slot each, where the target's passes write it.

    Keys and values have memory of kv_dtype (2L, slots, H, S, row size): key and value of each layer come in turn, and a
    layer's slots are contiguous, so a range of them binds to the graph without a copy. Where it lies is a child's
    affair, and so are the states of recurrent layers.
    lengths: committed rows per slot; row r of a slot holds the token at position r. capacity: rows per slot (S).
    is_cut_anywhere: whether a text can be gone on from behind any of its tokens.
    """

    is_cut_anywhere = True

    def __init__(self, manifest: Manifest, num_slots: int, capacity: int) -> None:
        self.lengths = [0] * num_slots
        self.num_slots = num_slots
        self.capacity = min(capacity, manifest.max_context)
        self._manifest = manifest

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory that is taken now."""

    def num_bytes_of(self, lengths: Sequence[int], capacity: int) -> int:
        """Memory that so long slots take at most, in a cache of such slots and `capacity`.

        A dense cache, which this is unless a child knows better, takes as much for each slot, however short its text.
        """
        return len(lengths) * capacity * self._manifest.kv_row_bytes

    @abstractmethod
    def foresee(self, num_slots: int) -> None:
        """Prepare for so many slots where that takes no memory: growth will copy nothing, slots take what they hold."""

    def extend(self, first_slot: int, num_slots: int, num_nodes: int) -> None:
        """Make room for what a pass writes: so many rows behind the committed ones of each of these slots."""
        self.reserve(self.num_slots, max(self.lengths[first_slot : first_slot + num_slots]) + num_nodes)

    @abstractmethod
    def trim(self, slot: int) -> None:
        """Let go of the memory behind a slot's committed rows, where a cache can."""

    def reserve(self, num_slots: int, capacity: int) -> None:
        """Make room for `num_slots` slots of `capacity` rows; keeps all contents, and grows geometrically.

        Raises ConfigError beyond the model's context.
        """
        if num_slots <= self.num_slots and capacity <= self.capacity:
            return
        limit = self._manifest.max_context
        if capacity > limit:
            raise ConfigError(f"The KV cache needs {capacity} rows, the model's context ends at {limit}.")
        num_slots = max(num_slots, self.num_slots)
        capacity = self.capacity if capacity <= self.capacity else min(max(capacity, 2 * self.capacity), limit)
        self.resize(num_slots, capacity)

    def resize(self, num_slots: int, capacity: int) -> None:
        """Have exactly so many slots of so many rows, with what of the contents is left then.

        Raises ConfigError where memory is short; then nothing has changed.
        """
        if (num_slots, capacity) == (self.num_slots, self.capacity):
            return
        lengths = [min(length, capacity) for length in self.lengths[:num_slots]]
        lengths += [0] * (num_slots - len(lengths))
        self._resize(num_slots, capacity)
        # Nothing is called from here on: interrupts come with calls, and would leave another size than the memory's.
        self.num_slots, self.capacity = num_slots, capacity
        self.lengths[:] = lengths

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep the walked nodes of the last pass over a slot: row length + path[i] moves to length + i.

        Cost: rows that move. A path that begins with less than the pass's kept nodes leaves a slot that must be cut.
        """
        length, first = self.lengths[slot], 0
        while first < len(path) and path[first] == first:
            first += 1
        if first < len(path):
            self._move_rows(slot, length + np.array(path[first:]), length + first)
        self.lengths[slot] = length + len(path)

    def usable(self, slot: int, length: int) -> int:
        """How many of a slot's first rows it can be gone on from, of so many at most.

        All of those, where no layer is recurrent: a state cannot be taken back to where it has been.
        """
        return min(length, self.lengths[slot])

    def cut(self, slot: int, length: int) -> int:
        """Keep a slot's first rows alone, as many as are `usable` of so many; returns how many."""
        self.lengths[slot] = length = self.usable(slot, length)
        return length

    def note_place(self, slot: int) -> bool:
        """Make this a place that a slot can be cut to later; whether that took memory."""
        return False

    def keep_places(self, max_bytes: int) -> int:
        """Have such places take so much memory at most, now and later; returns what they take now."""
        return 0

    def num_pending(self, slot: int) -> int:
        """The last rows of a slot that the states of recurrent layers are not moved over yet."""
        return 0

    def assume(self, slot: int, length: int) -> None:
        """Take `length` rows as committed, whatever is there: for measurements, where that plays no part."""
        self.lengths[slot] = length

    def fill(self, slot: int, length: int) -> None:
        """The same, with rows that are written."""
        self.assume(slot, length)

    def swap(self, slot: int, other: int) -> None:
        """Exchange two slots' contents, so that running slots stay adjacent."""
        if slot == other:
            return
        self._swap_contents(slot, other)
        self.lengths[slot], self.lengths[other] = self.lengths[other], self.lengths[slot]

    def copy(self, slot: int, other: int, length: int) -> int:
        """Have the first rows of a slot, as many as are `usable` of so many, as all of another; returns how many."""
        length = self.usable(slot, length)
        self.write_slot(other, self.read_slot(slot, length))
        return length

    def write_slot(self, slot: int, contents: SlotContents) -> None:
        """Have these contents, as `read_slot` gave them, as all of a slot that has room for them."""
        self._write_contents(slot, contents)
        self.lengths[slot] = contents.length

    @abstractmethod
    def read_slot(self, slot: int, length: int) -> SlotContents:
        """The first rows of a slot, as many as are `usable`, valid until it changes."""

    @abstractmethod
    def _write_contents(self, slot: int, contents: SlotContents) -> None:
        """Write the first rows of a slot."""

    @abstractmethod
    def _resize(self, num_slots: int, capacity: int) -> None:
        """Move to other memory, with the committed rows that fit; allocate it before anything changes."""

    @abstractmethod
    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        """Copy rows of a slot to `start` and on; the ranges may overlap."""

    @abstractmethod
    def _swap_contents(self, slot: int, other: int) -> None:
        """Exchange what is committed in two slots."""


class Target(Protocol):
    """A loaded model.

    provider: what runs the graph, e.g. "CPUExecutionProvider". is_native: whether native kernels run parts of it.
    instructions: the instruction set of those kernels, such as "avx512-vnni"; None without them.
    min_rows: nodes that a pass has at least, over all its trees; see `with_min_rows`.
    pass_facts: versions and devices that times and bits of passes depend on, beside processor, threads and the above.
    """

    manifest: Manifest
    provider: str
    is_native: bool
    instructions: str | None
    min_rows: int
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
