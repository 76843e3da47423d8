"""What a pass takes on its way is never less than it did, however late this process looks at the clock."""

import math
import time

import pytest

from reader_edge_runtime.errors import StageLostError
from reader_edge_runtime.execution.pipeline.in_flight import Came, InFlightPasses


class SlowToSend:
    """A `Following` whose passes come back while they are sent, as where the sender waits for a processor."""

    facts: tuple[str, ...] = ()
    slowest_s = 1e-9

    def __init__(self) -> None:
        self.now_s = 0.0

    def send(self, frame: bytes) -> int:
        self.now_s += 0.25
        return 1

    def receive(self) -> Came:
        return Came(1, memoryview(b""))

    def come_back(self, lost: StageLostError) -> None:
        """Nothing is ever lost."""


def test_a_sender_that_waits_for_a_processor_takes_no_link_for_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    following = SlowToSend()
    monkeypatch.setattr(time, "perf_counter", lambda: following.now_s)
    in_flight = InFlightPasses(following)
    in_flight.wait(in_flight.send(b""))
    assert in_flight.trip_s == 0.25


def test_what_the_way_took_to_a_lost_box_is_not_believed_of_a_spare_one() -> None:
    in_flight = InFlightPasses(SlowToSend())
    in_flight.trip_s = 0.001
    in_flight.come_back(StageLostError("Stage 1 is gone."), 0)
    assert math.isinf(in_flight.trip_s)
