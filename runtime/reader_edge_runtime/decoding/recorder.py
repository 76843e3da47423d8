"""Times the parts of each decoding step: planning, the pass, verification and so on."""

import functools
import time
from collections.abc import Callable
from operator import sub
from typing import Any, TypeVar, cast

from reader_edge_runtime.stats import STEP_PARTS, StepTimes

Method = TypeVar("Method", bound=Callable[..., Any])


class Recorder:
    """moments: when a step began, and when each of its parts ended, so that no time between them is lost.

    num_steps, total: steps of the decoder so far, and what their parts took, each counted once for all its requests.
    """

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.num_steps = 0
        self.total = StepTimes()

    def start(self) -> None:
        self.moments = [time.perf_counter()]

    def lap(self) -> float:
        """Seconds since the last moment; this is the next one."""
        self.moments.append(time.perf_counter())
        return self.moments[-1] - self.moments[-2]

    def end_step(self) -> StepTimes:
        """What a step took whose parts have all ended, in the order of StepTimes."""
        times = StepTimes(*map(sub, self.moments[1:], self.moments))
        self.count(times)
        return times

    def count(self, times: StepTimes) -> None:
        self.num_steps += 1
        for part in STEP_PARTS:
            setattr(self.total, part, getattr(self.total, part) + getattr(times, part))


def recorded(method: Method) -> Method:
    """Decorate a part of a step, a method whose owner has a `recorder`."""

    @functools.wraps(method)
    def timed(self: Any, *arguments: Any) -> Any:
        result = method(self, *arguments)
        self.recorder.moments.append(time.perf_counter())
        return result

    return cast(Method, timed)
