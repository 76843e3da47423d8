"""The clock of decoding: which part of a step took how long."""

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from reader_edge_runtime.stats import StepTimes

Method = TypeVar("Method", bound=Callable[..., Any])


class Recorder:
    """Measures in laps: each is all the time since the one before, so that nothing between them is lost.

    times: the laps since `start` that were charged to parts of a step.
    """

    def __init__(self) -> None:
        self.times = StepTimes()
        self._last = 0.0

    def start(self) -> None:
        """Begin a step."""
        self.times = StepTimes()
        self._last = time.perf_counter()

    def lap(self) -> float:
        """End a lap and return its seconds."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


def recorded(part: str) -> Callable[[Method], Method]:
    """Decorate a method whose owner has a `recorder`: it ends a lap that is charged to `part`, a field of StepTimes."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def timed(self: Any, *arguments: Any) -> Any:
            result = method(self, *arguments)
            recorder = self.recorder
            setattr(recorder.times, part, recorder.lap())
            return result

        return cast(Method, timed)

    return decorate
