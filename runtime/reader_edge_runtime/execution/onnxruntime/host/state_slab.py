"""States of recurrent layers that are alike, in one array, and deltas of nodes that they are not moved over yet."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import StateDeltas
from reader_edge_runtime.package.manifest import Manifest


class StateGroup(NamedTuple):
    """What the states of a slab have in common: sizes of a text's state, and numbers of a node's delta.

    names: what follows `state_`, `pending_`, `present_` and `capsule_` in the graph's names of each.
    """

    names: list[str]
    sizes: tuple[int, ...]
    delta_size: int


def state_groups(manifest: Manifest) -> list[StateGroup]:
    """One group for all states of the same sizes."""
    delta_sizes, names = manifest.capsule_sizes(), dict[tuple[tuple[int, ...], int], list[str]]()
    for name, sizes in manifest.state_sizes().items():
        names.setdefault((sizes, delta_sizes[name]), []).append(name)
    return [StateGroup(each, *sizes) for sizes, each in names.items()]


class StateSlab:
    """states: float32 (n, slots, ...), zeros before any token. pending: float32 (n, slots, P, C)."""

    def __init__(self, group: StateGroup, num_slots: int, num_pending: int) -> None:
        """num_pending: P. Raises MemoryError."""
        self.group = group
        self.states: Float32Array = np.zeros((len(group.names), num_slots, *group.sizes), np.float32)
        self.pending = self._no_deltas(num_slots, num_pending)

    @property
    def num_bytes(self) -> int:
        return self.states.nbytes + self.pending.nbytes

    def take(self, other: "StateSlab") -> None:
        """Have the contents of another slab's first slots, and zeros in what it does not have."""
        num_slots, num_pending = (min(self.pending.shape[axis], other.pending.shape[axis]) for axis in (1, 2))
        self.states[:, :num_slots] = other.states[:, :num_slots]
        self.pending[:, :num_slots, :num_pending] = other.pending[:, :num_slots, :num_pending]

    def with_room(self, num_pending: int) -> "StateSlab":
        """The same states in the same memory, with room for so many deltas of each slot."""
        other = object.__new__(StateSlab)
        other.group, other.states = self.group, self.states
        other.pending = self._no_deltas(self.states.shape[1], num_pending)
        other.pending[:, :, : self.pending.shape[2]] = self.pending
        return other

    def hold(self, slot: int, deltas: Float32Array, nodes: Sequence[int]) -> None:
        """Have deltas (n, N, C) of some nodes, ascending, wait for the next pass."""
        start, num_pending = nodes[0], len(nodes)
        is_run = nodes[-1] - start == num_pending - 1
        chosen = deltas[:, start : start + num_pending] if is_run else deltas[:, nodes]
        self.pending[:, slot, :num_pending] = chosen

    def swap(self, slot: int, other: int, num_pending: int) -> None:
        """Exchange two slots' states, and so many of their deltas, one layer after the other."""
        for states, pending in zip(self.states, self.pending[:, :, :num_pending], strict=True):
            for slots in (states, pending):
                kept = slots[slot].copy()
                slots[slot] = slots[other]
                slots[other] = kept

    def _no_deltas(self, num_slots: int, num_pending: int) -> Float32Array:
        return np.zeros((len(self.group.names), num_slots, num_pending, self.group.delta_size), np.float32)


_MOST_REUSED = 64  # nodes of a pass

Sizes = tuple[int, int]  # B and N


class PassStateDeltas(NamedTuple):
    """Deltas of all nodes of a pass: (n, B, N, C) of each slab, and (B, N, C) of each state by the graph's names."""

    by_slab: list[Float32Array]
    by_name: StateDeltas


class StateDeltaMemory:
    """Passes of few nodes, as drafts have them, leave theirs in the same memory; what wide ones took goes with them."""

    def __init__(self, groups: Sequence[StateGroup]) -> None:
        self._groups = groups
        self._num_node_values = sum(len(group.names) * group.delta_size for group in groups)
        self._memory = np.empty(0, np.float32)
        self._known: dict[Sizes, PassStateDeltas] = {}
        self._wide: tuple[Sizes, PassStateDeltas] | None = None

    @property
    def node_bytes(self) -> int:
        """Bytes of a node's deltas in all layers."""
        return 4 * self._num_node_values

    def of_pass(self, num_trees: int, num_nodes: int) -> PassStateDeltas:
        """The same value for the same sizes, as long as it may. Raises ConfigError where memory is short."""
        sizes = num_trees, num_nodes
        if num_trees * num_nodes > _MOST_REUSED:
            if self._wide is None or self._wide[0] != sizes:
                self._wide = None
                self._wide = sizes, self._cut(self._new_memory(sizes), sizes)
            return self._wide[1]
        self._wide = None
        if sizes not in self._known:
            if self._memory.size < num_trees * num_nodes * self._num_node_values:
                self._known.clear()
                self._memory = self._new_memory(sizes)
            self._known[sizes] = self._cut(self._memory, sizes)
        return self._known[sizes]

    def _new_memory(self, sizes: Sizes) -> Float32Array:
        num_values = math.prod(sizes) * self._num_node_values
        try:
            return np.empty(num_values, np.float32)
        except MemoryError:
            raise ConfigError(
                f"A pass over {math.prod(sizes)} tokens needs {4e-9 * num_values:.2f} GB for recurrent layers: lower "
                "prefill_chunk, or free some memory."
            ) from None

    def _cut(self, memory: Float32Array, sizes: Sizes) -> PassStateDeltas:
        by_slab: list[Float32Array] = []
        by_name: dict[str, Float32Array] = {}
        start = 0
        for group in self._groups:
            shape = len(group.names), *sizes, group.delta_size
            by_slab.append(memory[start : start + math.prod(shape)].reshape(shape))
            by_name.update(zip((f"capsule_{name}" for name in group.names), by_slab[-1], strict=True))
            start += math.prod(shape)
        return PassStateDeltas(by_slab, by_name)
