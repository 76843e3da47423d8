"""Copies of recurrent states at some places of the texts in a cache, to which texts can be cut back."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import TextState

_MAX_BYTES = 256 << 20  # of all places, unless something else bounds them
_MAX_PLACES = 8  # of a slot


class Places:
    """Of each slot, in the order of its text. Their arrays never change, so that slots may share them."""

    def __init__(self, num_slots: int) -> None:
        self._slots: list[list[TextState]] = [[] for _ in range(num_slots)]
        self._max_bytes = _MAX_BYTES

    @property
    def num_bytes(self) -> int:
        """Memory of all, those that slots share once."""
        return sum({id(place): _num_bytes(place) for places in self._slots for place in places}.values())

    def add(self, slot: int, here: TextState) -> bool:
        """Copy where a slot stands; False where there is a place already, or no memory for one."""
        places = self._slots[slot]
        if any(place.end == here.end for place in places) or _num_bytes(here) > self._max_bytes:
            return False
        try:
            place = TextState(here.num_tokens, _copies(here.states), _copies(here.pending))
        except MemoryError:
            return False
        self._slots[slot] = sorted([*places, place], key=lambda each: each.end)
        if len(self._slots[slot]) > _MAX_PLACES:
            self._thin(slot)
        self.keep(self._max_bytes)
        return True

    def keep(self, max_bytes: int) -> int:
        """Have places take so much memory at most, now and later; returns what they take now.

        Those go first that are near others, of slots with many of them, and of these of the last slot.
        """
        self._max_bytes = max_bytes
        while (num_bytes := self.num_bytes) > max_bytes:
            self._thin(max(range(len(self._slots)), key=lambda slot: (len(self._slots[slot]), slot)))
        return num_bytes

    def until(self, slot: int, length: int) -> list[TextState]:
        """Those that stand for no more than the first tokens of a slot, so many, without capsules of later ones."""
        return [place.until(length) for place in self._slots[slot] if place.num_tokens <= length]

    def cut(self, slot: int, length: int) -> None:
        self._slots[slot] = self.until(slot, length) if length else []

    def set(self, slot: int, places: Sequence[TextState]) -> None:
        self._slots[slot] = list(places)
        self.keep(self._max_bytes)

    def swap(self, slot: int, other: int) -> None:
        self._slots[slot], self._slots[other] = self._slots[other], self._slots[slot]

    def resized(self, num_slots: int) -> "Places":
        """The places of the first slots, so many."""
        other = Places(num_slots)
        other._max_bytes = self._max_bytes
        kept = self._slots[:num_slots]
        other._slots[: len(kept)] = kept
        return other

    def _thin(self, slot: int) -> None:
        """Drop the place of a slot that is least missed: the nearer to the text's end, the closer they may be."""
        ends = [0, *(place.end for place in self._slots[slot])]
        gaps = [
            (after - before) / (1 + ends[-1] - end)
            for before, end, after in zip(ends, ends[1:], [*ends[2:], ends[-1]], strict=False)
        ]
        del self._slots[slot][min(range(len(gaps)), key=gaps.__getitem__)]


def _num_bytes(place: TextState) -> int:
    return sum(array.nbytes for array in (*place.states, *place.pending))


def _copies(arrays: Sequence[Float32Array]) -> tuple[Float32Array, ...]:
    return tuple(np.array(array, order="C") for array in arrays)
