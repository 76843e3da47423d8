"""Where passes leave the deltas of their nodes, until those of accepted ones are taken from there."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import StateDeltas
from reader_edge_runtime.execution.onnxruntime.host.state_slab import StateGroup

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
