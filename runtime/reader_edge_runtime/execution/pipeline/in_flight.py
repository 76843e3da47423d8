"""Passes in flight through a pipeline's other stages, of several senders who take turns."""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from reader_edge_runtime.cooperative_threads import yield_turn
from reader_edge_runtime.errors import ProviderError, StageLostError
from reader_edge_runtime.forward_result import ForwardResult

_SLOWER = 1.005  # what a trip seems to take grows by this with every slower one, as links change


class RowsLostError(StageLostError):
    """A stage has no rows of a cache, and all else that it had."""


class FinishedPass(NamedTuple):
    """A pass that came back, by its number: the residual stream that the last of those stages hands on, or an error."""

    number: int
    data: memoryview | ProviderError


class FollowingStages(Protocol):
    """The stages that follow, wherever they are.

    facts: what bits and times of their passes depend on, of each of them. slowest_s: seconds that the slowest of them
    takes for a pass of one node.
    """

    facts: tuple[str, ...]
    slowest_s: float

    def send(self, frame: bytes) -> int:
        """Send a frame on its way; its number. Raises StageLostError."""
        ...

    def receive(self) -> FinishedPass:
        """Wait for the next pass that comes back. Raises StageLostError where none of them will, or ProviderError."""
        ...

    def come_back(self, lost: StageLostError) -> None:
        """Reach all of them again, after one was lost. Raises StageLostError, one sentence that names it."""
        ...


class InFlightPasses:
    """trip_s: what a pass takes that is in flight alone. epoch: how often all was lost that the stages knew."""

    def __init__(self, following: FollowingStages) -> None:
        self.trip_s = math.inf
        self.epoch = 0
        self.following = following
        self._sent_at: dict[int, float] = {}
        self._came: dict[int, memoryview | ProviderError] = {}
        self._gone: ProviderError | None = None

    def send(self, frame: bytes) -> int:
        """A pass's number. Raises StageLostError."""
        sent_at = time.perf_counter()  # before it is sent: a process that has to wait for a processor then sees less
        number = self.following.send(frame)
        self._sent_at[number] = sent_at if not self._sent_at else math.inf
        return number

    def wait(self, number: int) -> memoryview:
        """What came of a pass; others may go on meanwhile. Raises StageLostError, or ProviderError."""
        try:
            while number not in self._came:
                if not yield_turn(lambda: number in self._came):
                    self.take_in()
            came = self._came[number]
        finally:
            self.give_up([number])
        if isinstance(came, ProviderError):
            raise came
        return came

    def give_up(self, numbers: Sequence[int]) -> None:
        """Ignore passes when they come back."""
        for number in numbers:
            self._sent_at.pop(number, None)
            self._came.pop(number, None)

    def take_in(self) -> None:
        """Wait until one of the passes has come, failed or was lost."""
        try:
            number, data = self.following.receive()
        except ProviderError as error:
            self._came |= dict.fromkeys(self._sent_at, error)
            return
        if number in self._sent_at:  # still awaited
            self._came[number] = data
            if not math.isinf(sent_at := self._sent_at[number]) and not isinstance(data, ProviderError):
                self.trip_s = min(time.perf_counter() - sent_at, _SLOWER * self.trip_s)

    def come_back(self, lost: StageLostError, epoch: int) -> None:
        """Reach the stages again, unless somebody has done so since an epoch. Raises StageLostError."""
        if epoch != self.epoch:
            if self._gone is not None:
                raise self._gone
            return
        self.epoch += 1
        self._gone = None
        try:
            self.following.come_back(lost)
        except ProviderError as error:
            self._gone = error
            raise
        self.trip_s = math.inf  # a spare box may be far from where the lost one was


class SecondPass:
    """A `reader_edge_runtime.target.InFlightPass`.

    number: of the pass in flight. epoch: of `InFlightPasses`, when it was sent. scored: its result, of what the stages
    that follow hand on of it. scored_again: the same, by a pass over the nodes of the first one as well, where a
    stage has lost its rows.
    """

    def __init__(
        self,
        in_flight: InFlightPasses,
        number: int,
        epoch: int,
        scored: Callable[[memoryview], ForwardResult],
        scored_again: Callable[[], ForwardResult],
    ) -> None:
        self._in_flight = in_flight
        self._number = number
        self._epoch = epoch
        self._scored = scored
        self._scored_again = scored_again

    def result(self) -> ForwardResult:
        try:
            data = self._in_flight.wait(self._number)
        except RowsLostError:
            return self._scored_again()
        except StageLostError as lost:
            self._in_flight.come_back(lost, self._epoch)
            return self._scored_again()
        return self._scored(data)

    def drop(self) -> None:
        self._in_flight.give_up([self._number])
