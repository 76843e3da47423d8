"""The cache of models with recurrent layers: beside keys and values, states that the graph updates in place.

A pass moves each state over the tokens that were accepted since, whose state deltas wait for it, then over the nodes
that it has to keep; deltas of other nodes wait until they are committed. So of each slot

    lengths[slot] = num_stated[slot] + deltas that wait,

and from a pass to its commit a state may stand for more than the slot's text. Nothing but a checkpoint goes on from
there: a copy of a state, to which a slot can be cut back, as a state itself cannot.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import SlotContents, TextState
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache, StateDeltas
from reader_edge_runtime.execution.onnxruntime.host.state_checkpoints import StateCheckpoints
from reader_edge_runtime.execution.onnxruntime.host.state_slab import (
    PassStateDeltas,
    StateDeltaMemory,
    StateSlab,
    state_groups,
)
from reader_edge_runtime.package.manifest import Manifest

_FIRST_ROOM = 8  # deltas of a slot, until a longer path is accepted
_MOVING = 1 << 62  # length of a state that a pass is changing: longer than any text, so that none may use it


class HybridCache(HostCache):
    """num_stated: tokens that each slot's states stand for."""

    is_cut_anywhere = False
    _manifest: Manifest

    def __init__(self, manifest: Manifest, num_slots: int, capacity: int) -> None:
        super().__init__(manifest, num_slots, capacity)
        self._state_forms = state_groups(manifest)
        self._delta_memory = StateDeltaMemory(self._state_forms)
        self.num_stated = [0] * num_slots
        self._room = _FIRST_ROOM
        self._state_slabs = self._new_state_slabs(num_slots)
        self._checkpoints = StateCheckpoints(num_slots)
        self._passed: dict[int, int] = {}  # slots of the last pass that are not committed yet, and their trees
        self._deltas = PassStateDeltas([], {})  # of the last pass

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + sum(slab.num_bytes for slab in self._state_slabs) + self._checkpoints.num_bytes

    def num_bytes_of(self, lengths: Sequence[int], capacity: int) -> int:
        delta_bytes = self._delta_memory.node_bytes * max(self._room, self.max_pending)
        return super().num_bytes_of(lengths, capacity) + len(lengths) * (self._manifest.state_bytes + delta_bytes)

    def limit_checkpoints(self, max_bytes: int) -> int:
        return self._checkpoints.keep(max_bytes)

    def tensors(self, first_slot: int, num_slots: int) -> Mapping[str, Float32Array]:
        slots = slice(first_slot, first_slot + num_slots)
        states = {
            f"state_{name}": states[slots]
            for slab in self._state_slabs
            for name, states in zip(slab.group.names, slab.states, strict=True)
        }
        return {**super().tensors(first_slot, num_slots), **states}

    def read_tensors(self, first_slot: int, num_slots: int) -> Mapping[str, Float32Array]:
        slots = slice(first_slot, first_slot + num_slots)
        return {
            f"pending_{name}": pending[slots]
            for slab in self._state_slabs
            for name, pending in zip(slab.group.names, slab.pending, strict=True)
        }

    def num_pending(self, slot: int) -> int:
        num_pending = self.lengths[slot] - self.num_stated[slot]
        if num_pending < 0:
            raise RuntimeError(f"The states of slot {slot} are ahead of its text, which was not cut.")
        return num_pending

    def begin_pass(self, first_slot: int, num_trees: int, num_nodes: int) -> StateDeltas:
        self._passed = {}
        for slot in range(first_slot, first_slot + num_trees):
            self.num_stated[slot] = _MOVING
        self._deltas = self._delta_memory.of_pass(num_trees, num_nodes)
        return self._deltas.by_name

    def end_pass(self, first_slot: int, num_kept: Sequence[int]) -> None:
        for slot, kept in enumerate(num_kept, first_slot):
            self.num_stated[slot] = self.lengths[slot] + int(kept)
        self._passed = {first_slot + b: b for b in range(len(num_kept))}

    def commit(self, slot: int, path: Sequence[int]) -> None:
        num_moved = self.num_stated[slot] - self.lengths[slot]
        if slot not in self._passed or num_moved < 0:
            raise RuntimeError(f"There was no pass over slot {slot} whose nodes could be committed.")
        if len(path) > num_moved:
            nodes, b = list(path[num_moved:]), self._passed[slot]
            self._make_room(len(nodes))
            for slab, deltas in zip(self._state_slabs, self._deltas.by_slab, strict=True):
                slab.hold(slot, deltas[:, b], nodes)
        super().commit(slot, path)
        del self._passed[slot]

    def usable(self, slot: int, length: int) -> int:
        checkpoint = self._checkpoint_of(slot, length)
        return 0 if checkpoint is None else checkpoint.end

    def cut(self, slot: int, length: int) -> int:
        checkpoint = self._checkpoint_of(slot, length)
        length = 0 if checkpoint is None else checkpoint.end
        if self.num_stated[slot] != (0 if checkpoint is None else checkpoint.num_tokens):
            self._restore(slot, checkpoint)
        self._checkpoints.cut(slot, length)
        self.lengths[slot] = length
        return length

    def checkpoint(self, slot: int) -> bool:
        here = self._here(slot)
        return here is not None and here.end > 0 and self._checkpoints.add(slot, here)

    def assume(self, slot: int, length: int) -> None:
        if length == 0:
            self.cut(slot, 0)
        self._checkpoints.cut(slot, 0)
        self.num_stated[slot] = length
        super().assume(slot, length)

    def read_slot(self, slot: int, length: int) -> SlotContents:
        states = *self._checkpoints.until(slot, length), self._checkpoint_of(slot, length) or self._beginning()
        return super().read_slot(slot, length)._replace(states=states)

    def _write_contents(self, slot: int, contents: SlotContents, start: int) -> None:
        super()._write_contents(slot, contents, start)
        self.num_stated[slot] = _MOVING
        before = self._checkpoints.until(slot, start) if start else []
        if contents.states:
            self._restore(slot, contents.states[-1])
        self._checkpoints.set(slot, [*before, *contents.states[:-1]])

    def _checkpoint_of(self, slot: int, length: int) -> TextState | None:
        """The last one within a slot's first rows, of so many: where the slot stands, rather than a copy."""
        checkpoints = self._checkpoints.until(slot, min(length, self.lengths[slot]))
        here = self._here(slot)
        if here is not None and here.num_tokens <= length:
            checkpoints.append(here.until(length))
        return max(reversed(checkpoints), key=lambda checkpoint: checkpoint.end, default=None)

    def _beginning(self) -> TextState:
        """Where any text begins."""
        states = tuple(np.zeros((len(group.names), *group.sizes), np.float32) for group in self._state_forms)
        pending = tuple(np.zeros((len(group.names), 0, group.delta_size), np.float32) for group in self._state_forms)
        return TextState(0, states, pending)

    def _here(self, slot: int) -> TextState | None:
        """Where a slot stands, as views; None where its states are ahead of its text."""
        num_pending = self.lengths[slot] - self.num_stated[slot]
        if num_pending < 0:
            return None
        states = tuple(slab.states[:, slot] for slab in self._state_slabs)
        pending = tuple(slab.pending[:, slot, :num_pending] for slab in self._state_slabs)
        return TextState(self.num_stated[slot], states, pending)

    def _restore(self, slot: int, checkpoint: TextState | None) -> None:
        """Have the states of a checkpoint, or those before any token."""
        self.num_stated[slot] = _MOVING
        if checkpoint is not None:
            self._make_room(checkpoint.end - checkpoint.num_tokens)
        for index, slab in enumerate(self._state_slabs):
            slab.states[:, slot] = 0.0 if checkpoint is None else checkpoint.states[index]
            if checkpoint is not None:
                slab.pending[:, slot, : checkpoint.end - checkpoint.num_tokens] = checkpoint.pending[index]
        self.num_stated[slot] = 0 if checkpoint is None else checkpoint.num_tokens

    def _make_room(self, num_pending: int) -> None:
        """Have room for so many deltas of each slot."""
        if num_pending > self._room:
            room = max(num_pending, min(2 * self._room, self.max_pending or 2 * self._room))
            with self._enough_memory(self.num_slots):
                slabs = [slab.with_room(room) for slab in self._state_slabs]
            self._state_slabs, self._room, self.num_moves = slabs, room, self.num_moves + 1

    def _resize(self, num_slots: int, capacity: int) -> None:
        if num_slots == self.num_slots:
            super()._resize(num_slots, capacity)
            return
        slabs, checkpoints = self._new_state_slabs(num_slots), self._checkpoints.resized(num_slots)
        for old, new in zip(self._state_slabs, slabs, strict=True):
            new.take(old)
        num_stated = self.num_stated[:num_slots] + [0] * (num_slots - self.num_slots)
        super()._resize(num_slots, capacity)
        self._state_slabs, self.num_stated, self._checkpoints = slabs, num_stated, checkpoints
        self._passed, self.num_moves = {}, self.num_moves + 1

    def _swap_contents(self, slot: int, other: int) -> None:
        super()._swap_contents(slot, other)
        self._passed = {}
        for slab in self._state_slabs:
            slab.swap(slot, other, self._room)
        self._checkpoints.swap(slot, other)
        self.num_stated[slot], self.num_stated[other] = self.num_stated[other], self.num_stated[slot]

    def _new_state_slabs(self, num_slots: int) -> list[StateSlab]:
        with self._enough_memory(num_slots):
            return [StateSlab(group, num_slots, self._room) for group in self._state_forms]

    @contextmanager
    def _enough_memory(self, num_slots: int) -> Iterator[None]:
        try:
            yield
        except MemoryError:
            gigabytes = num_slots * self._manifest.state_bytes / 1e9
            raise ConfigError(f"States of {num_slots} texts need {gigabytes:.1f} GB: lower max_batch.") from None
