"""The KV cache: slots of one preallocated slab that the graph updates in place."""

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.manifest import Manifest

Int64Array = npt.NDArray[np.int64]


class KVCache:
    """Keys and values of every layer for several sequences.

    slab: kv_dtype (2L, slots, H, S, D), key and value of each layer in turn; a layer's slots are contiguous, so a
    range of them binds to the graph without a copy, and one indexing operation commits all layers.
    lengths: committed rows per slot; row r of a slot holds the token at position r.
    """

    def __init__(self, manifest: Manifest, num_slots: int, capacity: int) -> None:
        self.max_capacity = manifest.max_context
        self.lengths = [0] * num_slots
        self.slab = self._allocate(manifest, num_slots, min(capacity, self.max_capacity))
        self._manifest = manifest

    @property
    def num_slots(self) -> int:
        return int(self.slab.shape[1])

    @property
    def capacity(self) -> int:
        """Rows per slot (S)."""
        return int(self.slab.shape[3])

    @property
    def num_bytes(self) -> int:
        return self.slab.nbytes

    def layer_view(self, index: int, first_slot: int, num_slots: int) -> npt.NDArray[np.floating]:
        """The graph's tensor number `index` (order of `Manifest.past_names`), a view (B, H, S, D)."""
        return self.slab[index, first_slot : first_slot + num_slots]

    def reserve(self, num_slots: int, capacity: int) -> None:
        """Make room for `num_slots` slots of `capacity` rows; grows geometrically, keeps all contents."""
        if num_slots <= self.num_slots and capacity <= self.capacity:
            return
        if capacity > self.max_capacity:
            raise ConfigError(f"The KV cache needs {capacity} rows, the model's context ends at {self.max_capacity}.")
        rows = self.capacity if capacity <= self.capacity else min(max(capacity, 2 * self.capacity), self.max_capacity)
        self._grow(max(num_slots, self.num_slots), rows)
        self.lengths += [0] * (self.num_slots - len(self.lengths))

    def commit(self, slot: int, path: list[int]) -> None:
        """Keep the rows of the walked nodes: row length + path[i] moves to length + i. Cost: rows that move."""
        length = self.lengths[slot]
        num_kept = len(path)
        first = next((i for i, node in enumerate(path) if node != i), num_kept)
        if first < num_kept:
            self._move_rows(slot, length + np.array(path[first:]), length + first)
        self.lengths[slot] = length + num_kept

    def fill(self, slot: int, length: int) -> None:
        """Take `length` rows as committed, whatever they hold: for measurements, where that plays no part."""
        self._touch_rows(slot, length)
        self.lengths[slot] = length

    def truncate(self, slot: int, length: int) -> None:
        """Forget the rows from `length` on."""
        self.lengths[slot] = min(length, self.lengths[slot])

    def swap(self, slot: int, other: int) -> None:
        """Exchange two slots' contents, so that running slots stay adjacent."""
        if slot == other:
            return
        self._swap_rows(slot, other, max(self.lengths[slot], self.lengths[other]))
        self.lengths[slot], self.lengths[other] = self.lengths[other], self.lengths[slot]

    def _grow(self, num_slots: int, capacity: int) -> None:
        slab = self._allocate(self._manifest, num_slots, capacity)
        for slot, length in enumerate(self.lengths):
            slab[:, slot, :, :length] = self.slab[:, slot, :, :length]
        self.slab = slab

    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        """Copy rows of a slot to `start` and on; the ranges may overlap."""
        self.slab[:, slot, :, start : start + len(rows)] = self.slab[:, slot][:, :, rows]

    def _swap_rows(self, slot: int, other: int, num_rows: int) -> None:
        pair = self.slab[:, [slot, other], :, :num_rows]
        self.slab[:, [other, slot], :, :num_rows] = pair

    def _touch_rows(self, slot: int, length: int) -> None:
        # Untouched rows share one page of zeros, which is read sooner than memory is.
        self.slab[:, slot, :, :length] = 1.0

    @staticmethod
    def _allocate(manifest: Manifest, num_slots: int, capacity: int) -> npt.NDArray[np.floating]:
        shape = (2 * manifest.num_layers, num_slots, manifest.num_kv_heads, capacity, manifest.head_dim)
        try:
            return np.zeros(shape, manifest.kv_dtype)  # zeros: a masked row must still be finite
        except MemoryError:
            gigabytes = np.prod(shape, dtype=np.float64) * np.dtype(manifest.kv_dtype).itemsize / 1e9
            raise ConfigError(
                f"A KV cache of {num_slots} x {capacity} tokens needs {gigabytes:.1f} GB: lower max_batch."
            ) from None
