"""What a pass takes on its way is never less than it did, however late this process looks at the clock."""

import math
import time

import pytest

from reader_edge_runtime.errors import StageLostError
from reader_edge_runtime.execution.pipeline.under_way import Came, UnderWay


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


def test_a_sender_that_has_to_wait_for_a_processor_takes_no_link_for_a_fast_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    following = SlowToSend()
    monkeypatch.setattr(time, "perf_counter", lambda: following.now_s)
    under_way = UnderWay(following)
    under_way.wait(under_way.send(b""))
    assert under_way.trip_s == 0.25


def test_what_the_way_took_to_a_lost_box_is_not_believed_of_a_spare_one() -> None:
    under_way = UnderWay(SlowToSend())
    under_way.trip_s = 0.001
    under_way.come_back(StageLostError("Stage 1 is gone."), 0)
    assert math.isinf(under_way.trip_s)
