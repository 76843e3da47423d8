"""The KV cache in the process's own memory, which the graph updates in place.

A single slot lies in huge pages where there are any, which attention reads a few percent sooner. Once there may be
more, rows take memory as they are written: each head of each layer and slot has a span of its own that begins with a
small page, so a slot takes what its own rows need, rounded up to a page in each span, however long others are. That is
so on Linux alone; elsewhere memory of all rows counts.
"""

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.host.paged_memory import (
    HAS_PAGES,
    PAGE_BYTES,
    PagedMemory,
    whole_pages,
)
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Cache, Int64Array, KvRows

KvArray = npt.NDArray[np.floating] | npt.NDArray[np.int8]


class HostCache(Cache):
    """memory: kv_dtype (2L, slots, H, S, row size), with slots and rows to spare where they take no memory.

    Another array after a change of its size that it had no room for.
    """

    def __init__(self, manifest: Manifest, num_slots: int, capacity: int) -> None:
        super().__init__(manifest, num_slots, capacity)
        self._num_planes, self._num_heads = 2 * manifest.num_layers, manifest.num_kv_heads
        self._span_row_bytes = manifest.kv_row_bytes // (self._num_planes * self._num_heads)
        self._num_written = [0] * num_slots  # rows of each slot, the first ones, that have pages
        self._pages: PagedMemory | None = None
        self.memory = self._dense(num_slots, self.capacity)

    @property
    def slab(self) -> KvArray:
        """kv_dtype (2L, slots, H, capacity, row size), a view: one indexing operation commits all layers."""
        return self.memory[:, : self.num_slots, :, : self.capacity]

    @property
    def num_bytes(self) -> int:
        if self._pages is None:
            return self.memory.nbytes
        return self._num_planes * self._num_heads * sum(map(self._span_bytes, self._num_written))

    def num_bytes_of(self, lengths: Sequence[int], capacity: int) -> int:
        if self._pages is None:
            return super().num_bytes_of(lengths, capacity)
        spans = self._num_planes * sum(map(self._span_bytes, lengths))
        swapped = self._span_bytes(max(lengths)) if len(lengths) > 1 else 0
        return self._num_heads * (spans + swapped)

    def foresee(self, num_slots: int) -> None:
        if HAS_PAGES and self._pages is None:
            with suppress(ConfigError):  # what there is does, too
                self._move_to(*self._paged(num_slots, self._manifest.max_context), self.lengths)

    def extend(self, first_slot: int, num_slots: int, num_nodes: int) -> None:
        super().extend(first_slot, num_slots, num_nodes)
        for slot in range(first_slot, first_slot + num_slots):
            self._note_written(slot, self.lengths[slot] + num_nodes)

    def trim(self, slot: int) -> None:
        self._keep(slot, self.lengths[slot])

    def layer_view(self, index: int, first_slot: int, num_slots: int) -> KvArray:
        """The graph's tensor number `index` (order of `Manifest.past_names`), a view (B, H, S, row size)."""
        return self.memory[index, first_slot : first_slot + num_slots]

    def fill(self, slot: int, length: int) -> None:
        self._note_written(slot, length)
        self.slab[:, slot, :, :length] = 1.0  # untouched rows share one page of zeros, which is read sooner
        super().fill(slot, length)

    def read_slot(self, slot: int, length: int) -> KvRows:
        return self.slab[:, slot, :, :length]

    def _write_rows(self, slot: int, rows: KvRows) -> None:
        self._note_written(slot, rows.shape[2])
        self.slab[:, slot, :, : rows.shape[2]] = rows

    def _resize(self, num_slots: int, capacity: int) -> None:
        kept = [min(length, capacity) for length in self.lengths[:num_slots]]
        kept += [0] * (num_slots - len(kept))
        if self._pages is None:
            self._move_to(self._dense(num_slots, capacity), None, kept)
        elif num_slots > self.memory.shape[1] or capacity > self.memory.shape[3]:
            self._move_to(*self._paged(num_slots, capacity), kept)
        else:
            for slot in range(self.num_slots):
                self._keep(slot, kept[slot] if slot < num_slots else 0)
            added = [0] * (num_slots - self.num_slots)
            self._num_written = self._num_written[:num_slots] + added

    def _move_to(self, memory: KvArray, pages: PagedMemory | None, kept: Sequence[int]) -> None:
        """Move the first rows of each slot, so many, to other memory."""
        for slot, num_rows in enumerate(kept[: self.num_slots]):
            memory[:, slot, :, :num_rows] = self.memory[:, slot, :, :num_rows]
        written = list(kept)
        self.memory, self._pages, self._num_written = memory, pages, written

    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        self.slab[:, slot, :, start : start + len(rows)] = self.slab[:, slot][:, :, rows]

    def _swap_rows(self, slot: int, other: int) -> None:
        """One plane after the other, so that hardly any row is there twice."""
        short, long = sorted((slot, other), key=lambda each: self.lengths[each])
        num_shared, num_rows = self.lengths[short], self.lengths[long]
        self._note_written(short, num_rows)
        for index, plane in enumerate(self.memory):
            kept = plane[short, :, :num_shared].copy()
            plane[short, :, :num_rows] = plane[long, :, :num_rows]
            plane[long, :, :num_shared] = kept
            self._give_back(index, long, num_shared, self._num_written[long])
        self._num_written[long] = num_shared
        self._keep(short, num_rows)

    def _note_written(self, slot: int, num_rows: int) -> None:
        self._num_written[slot] = max(self._num_written[slot], num_rows)

    def _keep(self, slot: int, num_rows: int) -> None:
        """Give back what only rows behind the first ones of a slot need."""
        if num_rows < self._num_written[slot]:
            for index in range(self._num_planes):
                self._give_back(index, slot, num_rows, self._num_written[slot])
            self._num_written[slot] = num_rows

    def _give_back(self, index: int, slot: int, start_row: int, end_row: int) -> None:
        start, end = self._span_bytes(start_row), self._span_bytes(end_row)
        if self._pages is not None and start < end:
            for head in range(self._num_heads):
                offset = int(np.dot((index, slot, head), self.memory.strides[:3]))
                self._pages.give_back(offset + start, offset + end)

    def _span_bytes(self, num_rows: int) -> int:
        return whole_pages(num_rows * self._span_row_bytes)

    def _dense(self, num_slots: int, capacity: int) -> KvArray:
        """Zeros, as a masked row must still be finite."""
        manifest = self._manifest
        shape = (self._num_planes, num_slots, self._num_heads, capacity, manifest.kv_row_size)
        try:
            return np.zeros(shape, manifest.kv_dtype)
        except MemoryError:
            raise self._shortage(num_slots, capacity) from None

    def _paged(self, num_slots: int, capacity: int) -> tuple[KvArray, PagedMemory]:
        """The same in small pages, a whole number of them in each span."""
        manifest = self._manifest
        step = PAGE_BYTES // math.gcd(PAGE_BYTES, self._span_row_bytes)
        capacity = max(-(-capacity // step), 1) * step
        shape = (self._num_planes, num_slots, self._num_heads, capacity, manifest.kv_row_size)
        try:
            pages = PagedMemory(num_slots * capacity * manifest.kv_row_bytes)
        except MemoryError:
            raise self._shortage(num_slots, capacity) from None
        return pages.array(shape, manifest.kv_dtype), pages

    def _shortage(self, num_slots: int, capacity: int) -> ConfigError:
        gigabytes = num_slots * capacity * self._manifest.kv_row_bytes / 1e9
        return ConfigError(f"A KV cache of {num_slots} x {capacity} tokens needs {gigabytes:.1f} GB: lower max_batch.")
