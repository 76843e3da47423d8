"""The KV cache in the process's own memory, which the graph updates in place.

Once there may be several slots, rows take memory as they are written, however long other slots are. That is so on Linux
alone; elsewhere memory of all rows counts.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.cache import Cache, KvLayout, SlotContents
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import HAS_PAGES, KvArray, KvSlab, kv_groups
from reader_edge_runtime.machine.process_memory import free_bytes

StateDeltas = Mapping[str, Float32Array]  # (B, N, C), by the graph's names
NO_STATE_DELTAS: StateDeltas = {}


def present_name(name: str) -> str:
    """The graph's output that has the memory of an input."""
    return "present_" + name.partition("_")[2]


class HostCache(Cache):
    """slabs: one where the heads of all layers are alike; with slots and rows to spare where they take no memory.

    num_moves: how often memory has moved; what was bound to it before is stale.
    """

    def __init__(self, manifest: KvLayout, num_slots: int, capacity: int) -> None:
        super().__init__(manifest, num_slots, capacity)
        self._groups = kv_groups(manifest)
        self._num_written = [0] * num_slots  # rows of each slot, the first ones, that have pages
        self._is_paged = False
        self.num_moves = 0
        self.slabs = self._new_slabs(num_slots, self.capacity, is_paged=False)

    @property
    def memory(self) -> KvArray:
        """All of the first slab."""
        return self.slabs[0].memory

    @property
    def slab(self) -> KvArray:
        """kv_dtype (2L, slots, H, capacity, row size), a view: what is in use of the first slab."""
        return self.memory[:, : self.num_slots, :, : self.capacity]

    @property
    def num_bytes(self) -> int:
        return sum(slab.num_bytes(self._num_written) for slab in self.slabs)

    def num_bytes_of(self, lengths: Sequence[int], capacity: int) -> int:
        if not self._is_paged:
            return super().num_bytes_of(lengths, capacity)
        return sum(slab.num_bytes_of(lengths) for slab in self.slabs)

    def reserve_addresses(self, num_slots: int) -> None:
        if HAS_PAGES and not self._is_paged:
            with suppress(ConfigError):  # what there is does, too
                self._move_to(self._new_slabs(num_slots, self._manifest.max_context, is_paged=True), True, self.lengths)

    def reserve(self, num_slots: int, capacity: int) -> None:
        if capacity > self.capacity:
            self.check_free(0, capacity)
        super().reserve(num_slots, capacity)

    def check_free(self, first_idle: int, num_rows: int) -> None:
        """Pages are given until there are none to write, so what a text needs is compared with what is free."""
        row_bytes, free = self._manifest.kv_row_bytes, free_bytes()
        num_written = max(self._num_written[first_idle:], default=0)
        if free is not None and (num_rows - num_written) * row_bytes > free:
            gigabytes = f"{num_rows * row_bytes / 1e9:.1f} GB of KV cache ({self._manifest.kv_dtype})"
            needed = f"{num_rows} tokens need {gigabytes}, and {free / 1e9:.1f} GB are free"
            raise ConfigError(f"{needed}: shorten the prompt or end other programs.")

    def extend(self, first_slot: int, num_slots: int, num_nodes: int) -> None:
        super().extend(first_slot, num_slots, num_nodes)
        self.note_written(first_slot, [self.lengths[first_slot + b] + num_nodes for b in range(num_slots)])

    def note_written(self, first_slot: int, num_rows: Sequence[int]) -> None:
        """Note that a pass writes so many first rows of each of these slots, for which there is room."""
        for slot, number in enumerate(num_rows, first_slot):
            self._note_written(slot, number)

    def trim(self, slot: int) -> None:
        self._keep(slot, self.lengths[slot])

    def tensors(self, first_slot: int, num_slots: int) -> Mapping[str, KvArray]:
        """By the graph's names, the inputs that a pass over a range of slots updates in place: views (B, ...)."""
        slots = slice(first_slot, first_slot + num_slots)
        return {
            name: plane[slots]
            for slab in self.slabs
            for name, plane in zip(slab.group.past_names, slab.memory, strict=True)
        }

    def read_tensors(self, first_slot: int, num_slots: int) -> Mapping[str, Float32Array]:
        """By the graph's names, the inputs that a pass over a range of slots only reads: views (B, ...)."""
        return {}

    def begin_pass(self, first_slot: int, num_trees: int, num_nodes: int) -> StateDeltas:
        """Where a pass over so many slots writes what only this cache reads, by the graph's names of its outputs.

        Until `end_pass`, what recurrent layers keep of these slots counts for nothing.
        """
        return NO_STATE_DELTAS

    def end_pass(self, first_slot: int, num_kept: Sequence[int]) -> None:
        """Note that a pass has moved the states of these slots, over so many nodes of each tree."""

    def fill(self, slot: int, length: int) -> None:
        self._note_written(slot, length)
        for slab in self.slabs:
            slab.memory[:, slot, :, :length] = 1.0  # untouched rows share one page of zeros, which is read sooner
        super().fill(slot, length)

    def read_slot(self, slot: int, length: int) -> SlotContents:
        return SlotContents(length, tuple(slab.read(slot, length) for slab in self.slabs))

    def _write_contents(self, slot: int, contents: SlotContents, start: int) -> None:
        self._note_written(slot, start + contents.length)
        for slab, rows in zip(self.slabs, contents.rows, strict=True):
            slab.write(slot, rows, start)

    def _resize(self, num_slots: int, capacity: int) -> None:
        kept = [min(length, capacity) for length in self.lengths[:num_slots]]
        kept += [0] * (num_slots - len(kept))
        if not self._is_paged or not all(slab.has_room(num_slots, capacity) for slab in self.slabs):
            self._move_to(self._new_slabs(num_slots, capacity, self._is_paged), self._is_paged, kept)
        else:
            for slot in range(self.num_slots):
                self._keep(slot, kept[slot] if slot < num_slots else 0)
            added = [0] * (num_slots - self.num_slots)
            self._num_written = self._num_written[:num_slots] + added

    def _move_to(self, slabs: list[KvSlab], is_paged: bool, kept: Sequence[int]) -> None:
        """Move the first rows of each slot, so many, to other memory."""
        for old, new in zip(self.slabs, slabs, strict=True):
            new.take(old, kept[: self.num_slots])
        written = list(kept)
        self.slabs, self._is_paged, self._num_written = slabs, is_paged, written
        self.num_moves += 1

    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        for slab in self.slabs:
            slab.move_rows(slot, rows, start)

    def _swap_contents(self, slot: int, other: int) -> None:
        short, long = sorted((slot, other), key=lambda each: self.lengths[each])
        num_shared, num_rows = self.lengths[short], self.lengths[long]
        self._note_written(short, num_rows)
        for slab in self.slabs:
            slab.swap_rows(short, long, num_shared, num_rows, self._num_written[long])
        self._num_written[long] = num_shared
        self._keep(short, num_rows)

    def _note_written(self, slot: int, num_rows: int) -> None:
        self._num_written[slot] = max(self._num_written[slot], num_rows)

    def _keep(self, slot: int, num_rows: int) -> None:
        """Give back what only rows behind the first ones of a slot need."""
        if num_rows < self._num_written[slot]:
            for slab in self.slabs:
                slab.give_back(slot, num_rows, self._num_written[slot])
            self._num_written[slot] = num_rows

    def _new_slabs(self, num_slots: int, capacity: int, is_paged: bool) -> list[KvSlab]:
        try:
            return [KvSlab(group, num_slots, capacity, is_paged) for group in self._groups]
        except MemoryError:
            size = f"{num_slots * capacity * self._manifest.kv_row_bytes / 1e9:.1f} GB"
            raise ConfigError(f"A KV cache of {num_slots} x {capacity} tokens needs {size}: lower max_batch.") from None
