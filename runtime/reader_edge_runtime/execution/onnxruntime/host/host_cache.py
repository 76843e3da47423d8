"""The KV cache in the process's own memory: one slab that the graph updates in place."""

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Cache, Int64Array, KvRows

KvArray = npt.NDArray[np.floating] | npt.NDArray[np.int8]


class HostCache(Cache):
    """slab: kv_dtype (2L, slots, H, S, row size); one indexing operation commits all layers.

    Another array after a change of its size.
    """

    def __init__(self, manifest: Manifest, num_slots: int, capacity: int) -> None:
        super().__init__(manifest, num_slots, capacity)
        self.slab = self._zeros(num_slots, self.capacity)

    @property
    def num_bytes(self) -> int:
        return self.slab.nbytes

    def layer_view(self, index: int, first_slot: int, num_slots: int) -> KvArray:
        """The graph's tensor number `index` (order of `Manifest.past_names`), a view (B, H, S, row size)."""
        return self.slab[index, first_slot : first_slot + num_slots]

    def fill(self, slot: int, length: int) -> None:
        self.slab[:, slot, :, :length] = 1.0  # untouched rows share one page of zeros, which is read sooner
        super().fill(slot, length)

    def read_slot(self, slot: int, length: int) -> KvRows:
        return self.slab[:, slot, :, :length]

    def _write_rows(self, slot: int, rows: KvRows) -> None:
        self.slab[:, slot, :, : rows.shape[2]] = rows

    def _resize(self, num_slots: int, capacity: int) -> None:
        slab = self._zeros(num_slots, capacity)
        for slot, length in enumerate(self.lengths[:num_slots]):
            num_kept = min(length, capacity)
            slab[:, slot, :, :num_kept] = self.slab[:, slot, :, :num_kept]
        self.slab = slab

    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        self.slab[:, slot, :, start : start + len(rows)] = self.slab[:, slot][:, :, rows]

    def _swap_rows(self, slot: int, other: int, num_rows: int) -> None:
        self.slab[:, [other, slot], :, :num_rows] = self.slab[:, [slot, other], :, :num_rows]

    def _zeros(self, num_slots: int, capacity: int) -> KvArray:
        manifest = self._manifest
        shape = (2 * manifest.num_layers, num_slots, manifest.num_kv_heads, capacity, manifest.kv_row_size)
        try:
            return np.zeros(shape, manifest.kv_dtype)  # zeros: a masked row must still be finite
        except MemoryError:
            gigabytes = np.prod(shape, dtype=np.float64) * np.dtype(manifest.kv_dtype).itemsize / 1e9
            raise ConfigError(
                f"A KV cache of {num_slots} x {capacity} tokens needs {gigabytes:.1f} GB: lower max_batch."
            ) from None
