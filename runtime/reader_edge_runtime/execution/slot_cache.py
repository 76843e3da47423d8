"""What the KV caches of all providers share: which rows of which slot are committed, and when to grow."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Int64Array


class SlotCache(ABC):
    """A `reader_edge_runtime.target.Cache` over memory of kv_dtype (2L, slots, H, S, D), wherever that lies.

    Key and value of each layer come in turn, and a layer's slots are contiguous, so a range of them binds to the graph
    without a copy.
    """

    def __init__(self, manifest: Manifest, num_slots: int, capacity: int) -> None:
        self.lengths = [0] * num_slots
        self.num_slots = num_slots
        self.capacity = min(capacity, manifest.max_context)
        self._manifest = manifest

    def reserve(self, num_slots: int, capacity: int) -> None:
        """Grows geometrically. Raises ConfigError beyond the model's context."""
        if num_slots <= self.num_slots and capacity <= self.capacity:
            return
        limit = self._manifest.max_context
        if capacity > limit:
            raise ConfigError(f"The KV cache needs {capacity} rows, the model's context ends at {limit}.")
        num_slots = max(num_slots, self.num_slots)
        capacity = self.capacity if capacity <= self.capacity else min(max(capacity, 2 * self.capacity), limit)
        self._grow(num_slots, capacity)
        self.num_slots, self.capacity = num_slots, capacity
        self.lengths += [0] * (num_slots - len(self.lengths))

    def commit(self, slot: int, path: Sequence[int]) -> None:
        length = self.lengths[slot]
        num_kept = len(path)
        first = next((i for i, node in enumerate(path) if node != i), num_kept)
        if first < num_kept:
            self._move_rows(slot, length + np.array(path[first:]), length + first)
        self.lengths[slot] = length + num_kept

    def fill(self, slot: int, length: int) -> None:
        self.lengths[slot] = length

    def swap(self, slot: int, other: int) -> None:
        if slot == other:
            return
        self._swap_rows(slot, other, max(self.lengths[slot], self.lengths[other]))
        self.lengths[slot], self.lengths[other] = self.lengths[other], self.lengths[slot]

    @abstractmethod
    def _grow(self, num_slots: int, capacity: int) -> None:
        """Move to larger memory, with the committed rows."""

    @abstractmethod
    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        """Copy rows of a slot to `start` and on; the ranges may overlap."""

    @abstractmethod
    def _swap_rows(self, slot: int, other: int, num_rows: int) -> None:
        """Exchange the first rows of two slots."""
