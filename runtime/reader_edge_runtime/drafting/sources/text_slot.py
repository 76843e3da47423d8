"""Which text a slot of a draft model's KV cache holds: kept behind its request's end, for one with the same prefix."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from reader_edge_runtime.drafting.drafter import RequestDrafter


class TextSlot:
    """token_ids: those whose rows it holds, behind the owner's text guesses of how it goes on. salt: of its owners, who
    find nothing of one with another.

    Nobody owns it any more when its owner is gone, whether or not it was released.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.token_ids: list[int] = []
        self.salt = ""
        self._owner: weakref.ref[object] | None = None
        self._num_true = 0  # tokens known to be the owner's

    @property
    def is_free(self) -> bool:
        return self._owner is None or self._owner() is None

    def own(self, owner: RequestDrafter) -> None:
        if self.salt != owner.salt:
            self.clear()
            self.salt = owner.salt
        self._owner = weakref.ref(owner)
        self._num_true = 0

    def release(self) -> None:
        """The rows stay, for a text that begins alike."""
        self._owner = None

    def clear(self) -> None:
        self.token_ids.clear()
        self._num_true = 0

    def num_held(self, owner: RequestDrafter, token_ids: Sequence[int]) -> int:
        """How much of a text a new owner would find in it."""
        return num_shared(self.token_ids, token_ids) if self.salt == owner.salt else 0

    def num_known(self, token_ids: Sequence[int]) -> int:
        """With how many tokens of the owner's text it begins, the last left out: what follows that is wanted."""
        self._num_true = num_shared(self.token_ids, token_ids, self._num_true)
        return self._num_true


Slot = TypeVar("Slot", bound=TextSlot)


def best_slot(slots: Sequence[Slot], worth: Callable[[Slot], int]) -> Slot | None:
    """Of the free slots the one that is worth most to a text; None where none is free."""
    return max((slot for slot in slots if slot.is_free), key=worth, default=None)


def side_by_side(
    slots: Iterable[Slot],
    is_alone: Callable[[Slot], bool] = lambda slot: False,
    place: Callable[[Slot], int] = lambda slot: slot.number,
) -> list[list[Slot]]:
    """Slots in groups that lie beside each other, as one pass takes them. is_alone: whether one is in no group.
    place: where a pass reads what a slot stands for."""
    ordered = enumerate(sorted(slots, key=place))
    groups = groupby(ordered, key=lambda each: (each[0] if is_alone(each[1]) else -1, place(each[1]) - each[0]))
    return [[slot for _, slot in group] for _, group in groups]


def num_shared(kept: Sequence[int], token_ids: Sequence[int], num_known: int = 0) -> int:
    """With how many of a text's tokens, its last left out, others begin, of whom so many are known to."""
    limit = min(len(kept), len(token_ids) - 1)
    while num_known < limit and kept[num_known] == token_ids[num_known]:
        num_known += 1
    return num_known
