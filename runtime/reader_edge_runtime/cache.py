"""The KV cache's interface: rows of keys and values of several texts, and states of recurrent layers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.layer import Layer

KvRows = npt.NDArray[Any]


class KvLayout(Protocol):
    """What a cache of keys and values asks of a model; a package's manifest tells it.

    cached_layers: by number, those with keys and values of their own. kv_row_bytes: of one row in all of them.
    """

    @property
    def max_context(self) -> int: ...
    @property
    def kv_dtype(self) -> str: ...
    @property
    def cached_layers(self) -> Mapping[int, Layer]: ...
    @property
    def kv_row_bytes(self) -> int: ...


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
    max_pending: most rows of a slot that ever wait for the states of recurrent layers, as those of a path that was just
    accepted, so that a bound on memory counts them; 0 where nobody has set it.
    is_cut_anywhere: whether a text can be gone on from behind any of its tokens. has_all_rows: whether what it keeps is
    all there is of a text, so that it can be saved; a stage's is not. has_host_rows: whether a few rows are read and
    written for little, as in the host's memory.
    """

    is_cut_anywhere = True
    has_all_rows = True
    has_host_rows = True

    def __init__(self, manifest: KvLayout, num_slots: int, capacity: int) -> None:
        self.lengths = [0] * num_slots
        self.num_slots = num_slots
        self.capacity = min(capacity, manifest.max_context)
        self.max_pending = 0
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
    def reserve_addresses(self, num_slots: int) -> None:
        """Prepare for so many slots where that takes no memory: growth will copy nothing, slots take what they hold."""

    def check_free(self, first_idle: int, num_rows: int) -> None:  # noqa: B027 - others know nothing of what is free
        """Raise ConfigError where memory is known to be short of so many rows for one of the slots from there on."""

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

    def checkpoint(self, slot: int) -> bool:
        """Make this a place that a slot can be cut to later; whether that took memory."""
        return False

    def limit_checkpoints(self, max_bytes: int) -> int:
        """Have such places take so much memory at most, now and later; returns what they take now."""
        return 0

    def num_pending(self, slot: int) -> int:
        """The last rows of a slot that the states of recurrent layers are not moved over yet."""
        return 0

    def assume(self, slot: int, length: int) -> None:
        """Take `length` rows as committed, whatever is there: for measurements, where that plays no part."""
        self.lengths[slot] = length

    def fill(self, slot: int, length: int) -> None:
        """Take `length` rows as committed, and have memory for them that was written to."""
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

    def write_slot(self, slot: int, contents: SlotContents, start: int = 0) -> None:
        """Have these contents, as `read_slot` gave them, as all of a slot that has room for them.

        start: rows of the slot that stay before them. Parts without states leave recurrent layers with none until one
        with states comes, or the slot is cut.
        """
        self._write_contents(slot, contents, start)
        self.lengths[slot] = start + contents.length

    @abstractmethod
    def read_slot(self, slot: int, length: int) -> SlotContents:
        """The first rows of a slot, as many as are `usable`, valid until it changes."""

    @abstractmethod
    def _write_contents(self, slot: int, contents: SlotContents, start: int) -> None:
        """Write rows of a slot, behind so many."""

    @abstractmethod
    def _resize(self, num_slots: int, capacity: int) -> None:
        """Move to other memory, with the committed rows that fit; allocate it before anything changes."""

    @abstractmethod
    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        """Copy rows of a slot to `start` and on; the ranges may overlap."""

    @abstractmethod
    def _swap_contents(self, slot: int, other: int) -> None:
        """Exchange what is committed in two slots."""
