"""Which texts have rows in a speculator's KV cache: a slot for each that is drafted for, kept for texts that go on."""

import weakref
from collections.abc import Iterable, Sequence
from itertools import groupby

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.drafting.sources.draft_model import num_shared
from reader_edge_runtime.drafting.sources.speculator.speculator import Speculator

_FIRST_CAPACITY = 256  # rows of the cache to begin with


class SpeculatorSlot:
    """A slot of the cache. token_ids: a text up to the last token that has a row. start: of the first that has one.

    Nobody owns it any more when its owner is gone, whether or not it was released.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.token_ids: list[int] = []
        self.start = 0
        self._owner: weakref.ref[object] | None = None
        self._num_true = 0  # tokens known to be the owner's text

    @property
    def is_free(self) -> bool:
        return self._owner is None or self._owner() is None

    def own(self, owner: object) -> None:
        self._owner = weakref.ref(owner)
        self._num_true = 0

    def release(self) -> None:
        """The rows stay, for a text that begins alike."""
        self._owner = None

    def next_position(self, token_ids: Sequence[int]) -> int:
        """Of the owner's text, the first token without a row; 0 where none has one. The last one is always scored."""
        self._num_true = num_shared(self.token_ids, token_ids, self._num_true)
        return self._num_true if self._num_true > self.start else 0

    def keep(self, token_ids: Sequence[int], position: int) -> None:
        """Keep rows of the owner's tokens before a position, if they reach up to it: without gaps, or none."""
        if position != self.next_position(token_ids):
            self.start = position
        self.token_ids[:] = token_ids[:position]
        self._num_true = position

    def clear(self) -> None:
        self.token_ids.clear()
        self.start = self._num_true = 0


class SpeculatorSlots:
    """max_slots: texts that are drafted for together. cache: with as many slots as were needed at once."""

    def __init__(self, speculator: Speculator, max_slots: int) -> None:
        self.cache: Cache = speculator.new_cache(1, min(_FIRST_CAPACITY, speculator.max_context))
        self.max_slots = max_slots
        self.slots: list[SpeculatorSlot] = []

    def take(self, owner: object, token_ids: Sequence[int]) -> SpeculatorSlot:
        """A slot for a text: of the free ones, the one that holds most of it."""
        free = [slot for slot in self.slots if slot.is_free]
        if not free:
            free.append(self.add())
        slot = max(free, key=lambda each: num_shared(each.token_ids, token_ids) - each.start)
        slot.own(owner)
        return slot

    def add(self) -> SpeculatorSlot:
        """One more slot, free."""
        number = len(self.slots)
        if number >= self.cache.num_slots:
            self.cache.foresee(max(self.max_slots, number + 1))
            self.cache.reserve(number + 1, self.cache.capacity)
        slot = SpeculatorSlot(number)
        self.slots.append(slot)
        return slot

    def fit(self, slot: SpeculatorSlot) -> None:
        """Have the cache hold what a slot says that it does: an interrupt, or a cut, leaves more."""
        self.cache.cut(slot.number, max(len(slot.token_ids) - slot.start, 0))

    def forget(self) -> None:
        """Drop all texts; those still drafted for begin anew."""
        for slot in self.slots:
            slot.clear()
            self.cache.cut(slot.number, 0)
            self.cache.trim(slot.number)


def side_by_side(slots: Iterable[SpeculatorSlot]) -> list[list[SpeculatorSlot]]:
    """Slots in groups that lie beside each other, as one pass takes them."""
    ordered = enumerate(sorted(slots, key=lambda slot: slot.number))
    return [[slot for _, slot in group] for _, group in groupby(ordered, key=lambda each: each[1].number - each[0])]
