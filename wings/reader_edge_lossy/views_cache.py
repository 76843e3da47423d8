"""Two slots for each text: all of it, and what was retrieved of it."""

from collections.abc import Sequence

from reader_edge_runtime.arrays import Int64Array
from reader_edge_runtime.cache import Cache, KvLayout, SlotContents


class ViewsCache(Cache):
    """Slot s has the whole text in slot 2s of `both`, and the retrieved view in the one behind it.

    Lengths, cuts and copies are of whole texts; the retrieved view is dropped where one is cut, and read again.
    has_view: of each slot, whether its retrieved view is there. For models of attention alone.
    """

    def __init__(self, layout: KvLayout, both: Cache) -> None:
        super().__init__(layout, both.num_slots // 2, both.capacity)
        self.both = both
        self.has_view = [False] * self.num_slots

    @property
    def num_bytes(self) -> int:
        return self.both.num_bytes

    def num_bytes_of(self, lengths: Sequence[int], capacity: int) -> int:
        return self.both.num_bytes_of([length for length in lengths for _ in range(2)], capacity)

    def foresee(self, num_slots: int) -> None:
        self.both.foresee(2 * num_slots)

    def trim(self, slot: int) -> None:
        self.both.trim(2 * slot)
        self.both.trim(2 * slot + 1)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        self.both.commit(2 * slot, path)
        if self.has_view[slot]:
            self.both.commit(2 * slot + 1, path)
        self.lengths[slot] = self.both.lengths[2 * slot]

    def cut(self, slot: int, length: int) -> int:
        self.drop_view(slot)
        self.lengths[slot] = length = self.both.cut(2 * slot, length)
        return length

    def drop_view(self, slot: int) -> None:
        """Forget the retrieved view of a text."""
        self.both.cut(2 * slot + 1, 0)
        self.has_view[slot] = False

    def assume(self, slot: int, length: int) -> None:
        self.both.assume(2 * slot, length)
        self.both.assume(2 * slot + 1, length)
        self.has_view[slot] = True
        super().assume(slot, length)

    def fill(self, slot: int, length: int) -> None:
        self.both.fill(2 * slot, length)
        self.drop_view(slot)
        super().assume(slot, length)

    def read_slot(self, slot: int, length: int) -> SlotContents:
        return self.both.read_slot(2 * slot, length)

    def _write_contents(self, slot: int, contents: SlotContents) -> None:
        self.drop_view(slot)
        self.both.write_slot(2 * slot, contents)

    def _resize(self, num_slots: int, capacity: int) -> None:
        self.both.resize(2 * num_slots, capacity)
        self.has_view = self.has_view[:num_slots] + [False] * (num_slots - self.num_slots)

    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        """Never called: `commit` leaves it to the cache of both."""

    def _swap_contents(self, slot: int, other: int) -> None:
        for view in range(2):
            self.both.swap(2 * slot + view, 2 * other + view)
        self.has_view[slot], self.has_view[other] = self.has_view[other], self.has_view[slot]
