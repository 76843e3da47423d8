"""The clock of decoding: which part of a step took how long."""

import functools
import time
from collections.abc import Callable
from operator import sub
from typing import Any, TypeVar, cast

from reader_edge_runtime.stats import StepTimes

Method = TypeVar("Method", bound=Callable[..., Any])


class Recorder:
    """moments: when a step began, and when each of its parts ended, so that no time between them is lost."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def start(self) -> None:
        self.moments = [time.perf_counter()]

    def lap(self) -> float:
        """Seconds since the last moment; this is the next one."""
        self.moments.append(time.perf_counter())
        return self.moments[-1] - self.moments[-2]

    @property
    def times(self) -> StepTimes:
        """Of a step whose parts have all ended, in the order of StepTimes."""
        return StepTimes(*map(sub, self.moments[1:], self.moments))


def recorded(method: Method) -> Method:
    """Decorate a part of a step, a method whose owner has a `recorder`."""

    @functools.wraps(method)
    def timed(self: Any, *arguments: Any) -> Any:
        result = method(self, *arguments)
        self.recorder.moments.append(time.perf_counter())
        return result

    return cast(Method, timed)
