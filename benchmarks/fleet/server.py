"""A server that takes all who wait into each of its passes, as reader-edge's does."""

from bisect import bisect_right
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from benchmarks.fleet.answers import WIDTHS, Answer, Steps
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.tree_widths import TreeWidths


class Waiting(Protocol):
    """What a pass may take in. done: happens when nothing is left to do. past: tokens before it."""

    done: simpy.Event
    past: float

    def is_hinted(self, now_s: float) -> bool:
        """Whether the device's draft for what follows is there."""

    def step(self, width: int, begun_s: float, ended_s: float) -> bool:
        """A pass has had a tree of so many nodes of it; returns whether it waits for another."""


class BatchingServer:
    """speed: times the machine on which passes were measured."""

    def __init__(self, env: simpy.Environment, times: PassTimes, speed: float, widths: TreeWidths) -> None:
        self._env, self._times, self._speed, self._widths = env, times, float(speed), widths
        self._waiting: list[Waiting] = []
        self._asked = env.event()
        env.process(self._serve())

    def ask(self, request: Waiting) -> simpy.Event:
        """What happens when the server is done with it."""
        self._waiting.append(request)
        if not self._asked.triggered:
            self._asked.succeed()
        return request.done

    def _serve(self) -> Generator[simpy.Event, Any, None]:
        while True:
            if not self._waiting:
                self._asked = self._env.event()
                yield self._asked
            batch, self._waiting, begun_s = self._waiting, [], self._env.now
            widths = [self._widths.best(len(batch), request.is_hinted(begun_s)) for request in batch]
            past = sum(request.past for request in batch) / len(batch)
            yield self._env.timeout(self._times.seconds(sum(widths), past) / self._speed)
            pairs = zip(batch, widths, strict=True)
            going_on = [request for request, width in pairs if request.step(width, begun_s, self._env.now)]
            self._waiting = going_on + self._waiting


@dataclass(slots=True)
class Verification:
    """One tree of a device. emitted: tokens that it brought."""

    done: simpy.Event
    past: float
    steps: Steps
    position: int
    emitted: int = 0

    def is_hinted(self, now_s: float) -> bool:
        return True

    def step(self, width: int, begun_s: float, ended_s: float) -> bool:
        self.emitted = self.steps[width][self.position]
        self.done.succeed()
        return False


@dataclass(slots=True)
class Stream:
    """A whole answer. lag_s: from a step until the device's hint for what follows is there; None without hints.

    A hint holds the device's widest draft behind the last token that it knew; it counts as far as it still goes on.
    """

    done: simpy.Event
    past: float
    answer: Answer
    lag_s: float | None
    position: int = 0
    num_steps: int = 0
    _ended_s: list[float] = field(default_factory=list)
    _positions: list[int] = field(default_factory=lambda: [0])

    def is_hinted(self, now_s: float) -> bool:
        return self._hint_left(now_s)[1] > 0

    def step(self, width: int, begun_s: float, ended_s: float) -> bool:
        behind, left = self._hint_left(begun_s)
        hinted = min(left, width) if behind or not left else self.answer.device[width][self.position]
        self.position += max(self.answer.server[width][self.position], hinted)
        self.num_steps += 1
        self._ended_s.append(ended_s)
        self._positions.append(self.position)
        if self.position < len(self.answer):
            return True
        self.done.succeed()
        return False

    def _hint_left(self, now_s: float) -> tuple[int, int]:
        """Tokens that were said since what the last hint that is there knew, and those that it would still bring."""
        if self.lag_s is None:
            return 0, 0
        known = self._positions[bisect_right(self._ended_s, now_s - self.lag_s)]
        behind = self.position - known
        return behind, max(0, self.answer.device[WIDTHS[-1]][known] - behind)
