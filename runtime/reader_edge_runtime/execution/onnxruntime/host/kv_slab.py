"""Keys and values of layers whose heads are alike, in one array, so that one indexing operation serves all of them.

A slab lies in huge pages where there are any, or, paged, in small ones: each head of each layer and slot has a span of
its own that begins with a page, so a slot takes what its own rows need, rounded up to a page in each span.
"""

import math
import mmap
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Int64Array
from reader_edge_runtime.cache import KvLayout, KvRows
from reader_edge_runtime.package.manifest import kv_row_size

HAS_PAGES = sys.platform == "linux"
PAGE_BYTES = mmap.PAGESIZE


class PagedMemory:
    """Zeros of which only pages that were written take memory, and which can be given back in part; on Linux alone.

    Private memory, `num_bytes` of address space. Raises MemoryError where the system does not give that.

    Pages are never huge: 2 MiB that one row has touched would hold the rows of many heads, layers and slots.
    """

    def __init__(self, num_bytes: int) -> None:
        if sys.platform != "linux":
            self._mapping = mmap.mmap(-1, num_bytes)
            return
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        try:
            self._mapping = mmap.mmap(-1, num_bytes, flags=flags)
        except (OSError, OverflowError):
            raise MemoryError from None
        with suppress(OSError):  # a kernel may know none
            self._mapping.madvise(mmap.MADV_NOHUGEPAGE)

    def array(self, shape: Sequence[int], data_type: str) -> npt.NDArray[Any]:
        """All of it, which lives as long as any such array."""
        return np.frombuffer(self._mapping, data_type).reshape(shape)

    def give_back(self, start: int, end: int) -> None:
        """Let go of the pages in [start, end), which begin and end with them. Locked ones stay (mlockall(2))."""
        if sys.platform != "linux":
            return
        with suppress(OSError):
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)


def whole_pages(num_bytes: int) -> int:
    """Bytes of the pages that so many bytes take."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


KvArray = npt.NDArray[np.floating] | npt.NDArray[np.int8]


class KvGroup(NamedTuple):
    """What the layers of a slab have in common. past_names: the graph's inputs, a plane of the slab each."""

    past_names: list[str]
    num_heads: int
    row_size: int
    data_type: str

    @property
    def span_row_bytes(self) -> int:
        return self.row_size * np.dtype(self.data_type).itemsize


def kv_groups(manifest: KvLayout) -> list[KvGroup]:
    """One for all layers with a cache, but where their heads differ."""
    names: dict[tuple[int, int], list[str]] = {}
    for number, layer in manifest.cached_layers.items():
        sizes = layer.num_kv_heads, kv_row_size(manifest.kv_dtype, layer.head_dim)
        names.setdefault(sizes, []).extend(f"past_{kind}.{number}" for kind in layer.kept)
    return [KvGroup(each, *sizes, manifest.kv_dtype) for sizes, each in names.items()]


class KvSlab:
    """memory: (planes, slots, H, S, row size), zeros at first, as a masked row must still be finite."""

    def __init__(self, group: KvGroup, num_slots: int, capacity: int, is_paged: bool) -> None:
        """Raises MemoryError. is_paged: with a whole number of pages in each span."""
        self.group = group
        self._pages: PagedMemory | None = None
        num_planes, span_row_bytes = len(group.past_names), group.span_row_bytes
        if is_paged:
            step = PAGE_BYTES // math.gcd(PAGE_BYTES, span_row_bytes)
            capacity = max(-(-capacity // step), 1) * step
        shape = (num_planes, num_slots, group.num_heads, capacity, group.row_size)
        if is_paged:
            self._pages = PagedMemory(num_planes * num_slots * group.num_heads * capacity * span_row_bytes)
            self.memory: KvArray = self._pages.array(shape, group.data_type)
        else:
            self.memory = np.zeros(shape, group.data_type)

    def has_room(self, num_slots: int, capacity: int) -> bool:
        return bool(num_slots <= self.memory.shape[1] and capacity <= self.memory.shape[3])

    def take(self, other: "KvSlab", kept: Sequence[int]) -> None:
        """Have the first rows of each slot of another slab, so many."""
        for slot, num_rows in enumerate(kept):
            self.memory[:, slot, :, :num_rows] = other.memory[:, slot, :, :num_rows]

    def read(self, slot: int, length: int) -> KvRows:
        """The first rows of a slot, a view (planes, H, length, row size)."""
        return self.memory[:, slot, :, :length]

    def write(self, slot: int, rows: KvRows, start: int) -> None:
        self.memory[:, slot, :, start : start + rows.shape[2]] = rows

    def move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        self.memory[:, slot, :, start : start + len(rows)] = self.memory[:, slot][:, :, rows]

    def swap_rows(self, short: int, long: int, num_shared: int, num_rows: int, num_written: int) -> None:
        """Exchange so many rows of two slots, of which one has written some that are let go of.

        One plane after the other, so that hardly any row is there twice.
        """
        for index, plane in enumerate(self.memory):
            kept = plane[short, :, :num_shared].copy()
            plane[short, :, :num_rows] = plane[long, :, :num_rows]
            plane[long, :, :num_shared] = kept
            self._give_back(index, long, num_shared, num_written)

    def give_back(self, slot: int, start_row: int, end_row: int) -> None:
        """Let go of what only rows in [start_row, end_row) of a slot need."""
        for index in range(len(self.memory)):
            self._give_back(index, slot, start_row, end_row)

    def num_bytes_of(self, lengths: Sequence[int]) -> int:
        """Pages that so long slots take, with what a swap of two takes for the time being."""
        spans = len(self.group.past_names) * sum(map(self._span_bytes, lengths))
        swapped = self._span_bytes(max(lengths)) if len(lengths) > 1 else 0
        return self.group.num_heads * (spans + swapped)

    def num_bytes(self, num_written: Sequence[int]) -> int:
        """Memory that is taken by slots that have written so many rows."""
        if self._pages is None:
            return self.memory.nbytes
        return len(self.group.past_names) * self.group.num_heads * sum(map(self._span_bytes, num_written))

    def _give_back(self, index: int, slot: int, start_row: int, end_row: int) -> None:
        start, end = self._span_bytes(start_row), self._span_bytes(end_row)
        if self._pages is not None and start < end:
            for head in range(self.group.num_heads):
                offset = int(np.dot((index, slot, head), self.memory.strides[:3]))
                self._pages.give_back(offset + start, offset + end)

    def _span_bytes(self, num_rows: int) -> int:
        return whole_pages(num_rows * self.group.span_row_bytes)
