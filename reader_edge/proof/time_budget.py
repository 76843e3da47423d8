"""The time that a proof may take."""

import math
import time
from collections.abc import Callable


class TimeBudget:
    """seconds: from now on; infinite without a limit. clock: tells seconds."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._start = clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._start

    @property
    def is_over(self) -> bool:
        return self.elapsed_s >= self.seconds

    def end_of(self, share: float) -> float:
        """When a share of the whole ends that begins now, in elapsed seconds; never behind the end of all."""
        return min(self.elapsed_s + share * self.seconds, self.seconds)
