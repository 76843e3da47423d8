"""Which texts have rows in a speculator's KV cache: a slot for each that is drafted for, kept for texts that go on."""

from collections.abc import Sequence

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.drafting.drafter import RequestDrafter
from reader_edge_runtime.drafting.sources.speculator.speculator import Speculator
from reader_edge_runtime.drafting.sources.text_slot import TextSlot, best_slot

_FIRST_CAPACITY = 256  # rows of the cache to begin with


class SpeculatorSlot(TextSlot):
    """A slot of the speculator's cache. start: the first of its tokens that has a row; all behind it have one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.start = 0

    def next_position(self, token_ids: Sequence[int]) -> int:
        """Of the owner's text, the first token without a row; 0 where none has one."""
        num_known = self.num_known(token_ids)
        return num_known if num_known > self.start else 0

    def keep(self, token_ids: Sequence[int], position: int) -> None:
        """Keep rows of the owner's tokens before a position, if they reach up to it: without gaps, or none."""
        if position != self.next_position(token_ids):
            self.start = position
        self.token_ids[:] = token_ids[:position]
        self._num_true = position

    def clear(self) -> None:
        super().clear()
        self.start = 0


class SpeculatorSlots:
    """max_slots: texts that are drafted for together. cache: with as many slots as were needed at once."""

    def __init__(self, speculator: Speculator, max_slots: int) -> None:
        self.cache: Cache = speculator.new_cache(1, min(_FIRST_CAPACITY, speculator.max_context))
        self.max_slots = max_slots
        self.slots: list[SpeculatorSlot] = []

    def take(self, owner: RequestDrafter, token_ids: Sequence[int]) -> SpeculatorSlot:
        """A slot for a text: of the free ones, the one that holds most of it."""
        slot = best_slot(self.slots, lambda each: each.num_held(owner, token_ids) - each.start) or self.add()
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
        """Drop all texts; those still drafted for are read again."""
        for slot in self.slots:
            slot.clear()
            self.cache.cut(slot.number, 0)
            self.cache.trim(slot.number)
