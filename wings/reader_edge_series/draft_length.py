"""Chooses how many patches a forecast drafts ahead, from the time and acceptance of past steps."""

import math
from collections import deque
from statistics import NormalDist, median

import numpy as np

from reader_edge_runtime.arrays import Int64Array

_ROW_BYTES = 2048  # of cached patches of the bundled model, beside whose passes the work around them was timed


class FixedCosts:
    """In undrafted steps, rather too much than too little.

    num_paths: that share a pass. row_bytes: of a cached patch, by which the size of the model is known. draft_cost: of
    each draft, beside its verification. begin: what drafts take once a forecast.
    """

    def __init__(self, num_paths: int, row_bytes: int, draft_cost: float) -> None:
        around = min(_ROW_BYTES / row_bytes, 1.0)  # what is beside passes counts for less beside larger ones
        self.begin = 2.0 if draft_cost else 0.0
        self._first = 0.3 * around
        verified = 0.05 + 0.3 * num_paths / (num_paths + 8)  # the more paths, the fewer units idle
        self._each = 0.12 * around + verified + draft_cost

    def of(self, length: int) -> float:
        """Of a step with so many drafts."""
        return 1.0 + (self._first + self._each * length if length else 0.0)


_FIRST, _LATER, _WEIGHT = 0.35, 0.5, 8.0  # of drafts, first and later ones, that are accepted, before any were made
_MEMORY = 150.0  # drafts at a depth that are remembered
_NUM_TIMES = 5  # that are kept of a length: their median tells through interruptions, and soon of another load
_FEWEST_TIMES = 3  # until a length is known, beside its very first, which has to make room
_STRETCH, _PLAIN_STRETCH = 4, 16  # steps of one length, with drafts and without: choosing takes time, too
_EVERY = 16  # steps with drafts until one without is timed again
_TRIED_SHARE = 0.01  # of the time of steps, for lengths that did not pay when they were last tried
_WORTH = 1.05  # how much sooner drafts have to end a forecast; counting and asking take time, too


class DraftLength:
    """Of passes over `num_paths` paths at once. most: patches drafted at most. costs: what counts instead of times.

    First the time of undrafted steps is learned. A draft is tried where it would pay if it cost nothing, and a longer
    one where it would pay if it took no longer than the next shorter one. What does not pay is tried again now and
    then, for a small share of the time.
    """

    def __init__(self, most: int, num_paths: int, costs: FixedCosts | None = None) -> None:
        self.most, self._costs = most, costs
        self._begin_s = costs.begin if costs else 0.0
        self._times = [deque[float](maxlen=_NUM_TIMES) for _ in range(most + 1)]
        self._is_new = [True] * (most + 1)
        self._proposed = [_WEIGHT] * most  # drafts at each depth whose forerunners were all accepted
        self._accepted = [_WEIGHT * (_LATER if depth else _FIRST) for depth in range(most)]
        self._length = self._num_more = 0  # of this stretch, and its steps to come
        self._num_since = 0  # steps with drafts since the last without
        self._num_steps = 0
        self._last_steps = [0] * (most + 1)  # with drafts of each length
        self._spare_s = 0.0
        # The slowest of the paths decides when a forecast ends: so many deviations behind the others.
        self._behind = NormalDist().inv_cdf((num_paths - 0.375) / (num_paths + 0.25))

    def begin(self) -> None:
        """A forecast begins, whose drafts have not."""
        self._num_more = 0

    def begun(self, seconds: float) -> None:
        """Drafts have begun, which took so long."""
        if self._costs is None:
            self._begin_s = seconds

    def choose(self, num_left: int, is_begun: bool = True) -> int:
        """How many to draft now, 0 for none. num_left: patches to come. is_begun: whether drafts have begun."""
        if not self._num_more:
            self._begin_stretch(num_left, 0.0 if is_begun else self._begin_s)
        self._num_more -= 1
        return min(self._length, num_left - 1)

    def settle(self, length: int, accepted: Int64Array, seconds: float) -> None:
        """Learn from a step. accepted: of each path, how many of its drafts, `length` of each."""
        if self._costs:
            seconds = self._costs.of(length)
        elif self._is_new[length]:
            self._is_new[length] = False
        else:
            self._times[length].append(seconds)
        self._spare_s += _TRIED_SHARE * seconds
        self._num_steps += 1
        self._last_steps[length] = self._num_steps
        if not length:
            self._num_since = 0
            return
        self._num_since += 1
        num_reached = len(accepted)
        for depth, num_ended in enumerate(np.bincount(accepted, minlength=length)[:length].tolist()):
            proposed, num_reached = self._proposed[depth] + num_reached, num_reached - num_ended
            kept = min(_MEMORY / proposed, 1.0)
            self._proposed[depth] = kept * proposed
            self._accepted[depth] = kept * (self._accepted[depth] + num_reached)

    def _begin_stretch(self, num_left: int, begin_s: float) -> None:
        self._num_more = _STRETCH
        if not self._is_known(0):
            self._length = 0
        elif self._num_since >= _EVERY and self._costs is None:
            self._length, self._num_more = 0, 1
        else:
            self._length = self._tried(self._best(num_left, begin_s), num_left, begin_s)
            self._num_more = _STRETCH if self._length else _PLAIN_STRETCH

    def _best(self, num_left: int, begin_s: float) -> int:
        best, seconds = 0, self._seconds(0)
        least = seconds * num_left / _WORTH
        chance, brought, squares = 1.0, 1.0, 0.0
        for length in range(1, min(self.most, num_left - 1) + 1):
            chance *= self._accepted[length - 1] / self._proposed[length - 1]
            brought, squares = brought + chance, squares + (2 * length - 1) * chance
            is_known = self._is_known(length)
            seconds = self._seconds(length) if is_known else seconds
            variance = max(squares - (brought - 1) ** 2, 0.0)
            num_steps = num_left / brought + self._behind * math.sqrt(num_left * variance / brought**3)
            if begin_s + seconds * num_steps < least:
                best, least = length, begin_s + seconds * num_steps
            if not is_known:
                break
        return best

    def _tried(self, best: int, num_left: int, begin_s: float) -> int:
        """The best, or in its place what was left out for longest, once enough time is spared for it."""
        others = (length for length in range(1, min(self.most, num_left - 1) + 1) if length != best)
        other = min(others, key=self._last_steps.__getitem__, default=best)
        plain_s = self._seconds(0)
        seconds = max(self._seconds(other) if self._is_known(other) else 2 * plain_s, 1.1 * plain_s)
        lost_s = begin_s + _STRETCH * (seconds - plain_s)
        if self._spare_s < lost_s:
            return best
        self._spare_s = 0.0
        return other

    def _is_known(self, length: int) -> bool:
        return self._costs is not None or len(self._times[length]) >= _FEWEST_TIMES

    def _seconds(self, length: int) -> float:
        """Of a step with so many drafts."""
        return self._costs.of(length) if self._costs else median(self._times[length])
