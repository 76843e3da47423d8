"""Copies of recurrent states at some checkpoints of the texts in a cache, to which texts can be cut back."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import TextState

_MAX_BYTES = 256 << 20  # of all checkpoints, unless something else bounds them
_MAX_CHECKPOINTS = 8  # of a slot


class StateCheckpoints:
    """Of each slot, in the order of its text. Their arrays never change, so that slots may share them."""

    def __init__(self, num_slots: int) -> None:
        self._slots: list[list[TextState]] = [[] for _ in range(num_slots)]
        self._max_bytes = _MAX_BYTES

    @property
    def num_bytes(self) -> int:
        """Memory of all, those that slots share once."""
        return sum({id(each): _num_bytes(each) for checkpoints in self._slots for each in checkpoints}.values())

    def add(self, slot: int, here: TextState) -> bool:
        """Copy where a slot stands; False where there is a checkpoint already, or no memory for one."""
        checkpoints = self._slots[slot]
        if any(checkpoint.end == here.end for checkpoint in checkpoints) or _num_bytes(here) > self._max_bytes:
            return False
        try:
            checkpoint = TextState(here.num_tokens, _copies(here.states), _copies(here.pending))
        except MemoryError:
            return False
        self._slots[slot] = sorted([*checkpoints, checkpoint], key=lambda each: each.end)
        if len(self._slots[slot]) > _MAX_CHECKPOINTS:
            self._thin(slot)
        self.keep(self._max_bytes)
        return True

    def keep(self, max_bytes: int) -> int:
        """Have checkpoints take so much memory at most, now and later; returns what they take now.

        Those go first that are near others, of slots with many of them, and of these of the last slot.
        """
        self._max_bytes = max_bytes
        while (num_bytes := self.num_bytes) > max_bytes:
            self._thin(max(range(len(self._slots)), key=lambda slot: (len(self._slots[slot]), slot)))
        return num_bytes

    def until(self, slot: int, length: int) -> list[TextState]:
        """Those that stand for no more than the first tokens of a slot, so many, without deltas of later ones."""
        return [checkpoint.until(length) for checkpoint in self._slots[slot] if checkpoint.num_tokens <= length]

    def cut(self, slot: int, length: int) -> None:
        self._slots[slot] = self.until(slot, length) if length else []

    def set(self, slot: int, checkpoints: Sequence[TextState]) -> None:
        self._slots[slot] = list(checkpoints)
        self.keep(self._max_bytes)

    def swap(self, slot: int, other: int) -> None:
        self._slots[slot], self._slots[other] = self._slots[other], self._slots[slot]

    def resized(self, num_slots: int) -> "StateCheckpoints":
        """The checkpoints of the first slots, so many."""
        other = StateCheckpoints(num_slots)
        other._max_bytes = self._max_bytes
        kept = self._slots[:num_slots]
        other._slots[: len(kept)] = kept
        return other

    def _thin(self, slot: int) -> None:
        """Drop the checkpoint of a slot that is least missed: the nearer to the text's end, the closer they may be."""
        ends = [0, *(checkpoint.end for checkpoint in self._slots[slot])]
        gaps = [
            (after - before) / (1 + ends[-1] - end)
            for before, end, after in zip(ends, ends[1:], [*ends[2:], ends[-1]], strict=False)
        ]
        del self._slots[slot][min(range(len(gaps)), key=gaps.__getitem__)]


def _num_bytes(checkpoint: TextState) -> int:
    return sum(array.nbytes for array in (*checkpoint.states, *checkpoint.pending))


def _copies(arrays: Sequence[Float32Array]) -> tuple[Float32Array, ...]:
    return tuple(np.array(array, order="C") for array in arrays)
