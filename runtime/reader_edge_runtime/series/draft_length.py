"""How many patches are drafted: as many as bring most patches a second, by what steps took and brought so far."""

from collections.abc import Sequence

_DECAY = 0.9  # of what is known, at each step
_PRIOR = 0.7  # of drafted patches that are taken to be accepted, before any were
_PRIOR_WEIGHT = 2.0
_TRIALS = 2  # of a length until its time counts: the first has to make room
_NO_TIME = 1e-9
_MOST_LONGER = 3.0  # a step that takes so many times what such steps take was interrupted


class DraftLength:
    """Of passes over a number of paths at once. most: patches drafted at most.

    A length that was not tried yet is taken to last no longer than the next shorter one, so that each has its chance.
    """

    def __init__(self, most: int) -> None:
        self._seconds: dict[int, float] = {}
        self._times_tried: dict[int, int] = {}
        self._asked = [_PRIOR_WEIGHT] * most  # drafts at each depth whose forerunners were all accepted
        self._accepted = [_PRIOR * _PRIOR_WEIGHT] * most

    def choose(self, most: int) -> int:
        """How many to draft now, `most` at most; 0 for none."""
        rates, seconds, brought = [], _NO_TIME, 1.0
        for length, chance in enumerate([0.0, *self._chances(min(most, len(self._asked)))]):
            seconds = self._seconds[length] if self._times_tried.get(length, 0) >= _TRIALS else seconds
            brought += chance
            rates.append(brought / seconds)
        return max(range(len(rates)), key=rates.__getitem__)

    def settle(self, length: int, accepted: Sequence[int], seconds: float) -> None:
        """Learn from a step. accepted: of each path, how many of the drafts, `length` of each."""
        self._times_tried[length] = self._times_tried.get(length, 0) + 1
        known = seconds if self._times_tried[length] <= _TRIALS else self._seconds[length]
        self._seconds[length] = _DECAY * known + (1 - _DECAY) * min(seconds, _MOST_LONGER * known)
        for depth in range(length):
            num_asked = sum(number >= depth for number in accepted) / len(accepted)
            num_accepted = sum(number > depth for number in accepted) / len(accepted)
            self._asked[depth] = _DECAY * self._asked[depth] + num_asked
            self._accepted[depth] = _DECAY * self._accepted[depth] + num_accepted

    def _chances(self, length: int) -> list[float]:
        """That the drafts at each depth are reached and accepted."""
        chances, chance = [], 1.0
        for depth in range(length):
            chance *= self._accepted[depth] / self._asked[depth]
            chances.append(chance)
        return chances
