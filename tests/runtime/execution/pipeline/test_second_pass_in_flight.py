"""Two passes behind each other have the rows of one; what a pass takes on its way is never less than it did."""

import math
import time
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError, StageLostError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.pipeline.in_flight import FinishedPass, InFlightPasses
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from tests.hybrid_states import path_to, random_tree
from tests.stages_here import pipeline_here, stages_of, two_passes

Split = Callable[[int], Path]
TREE = DraftTree([5, 6, 7, 8, 9], [-1, 0, 1, 1, 0], [""] * 5)
NUM_STEPS = 14


def assert_same_rows_of_two(whole: Target, piped: PipelineTarget, seed: int) -> None:
    """Random trees cut in two anywhere, of which either a second pass is used or none, in slots that change places."""
    rng = np.random.default_rng(seed)
    targets, caches = (whole, piped), (whole.new_cache(2, 16), piped.new_cache(2, 16))
    for _ in range(NUM_STEPS):
        slot = int(rng.integers(2))
        tree = random_tree(rng, int(rng.integers(2, 40)), whole.manifest.vocab_size)
        num_first = int(rng.integers(1, len(tree)))
        wanted = Pass(slot, [tree], [range(len(tree))], wants_logits=True)
        expected = targets[0].forward(caches[0], wanted).wanted_logits
        found, behind = piped.forward_two(caches[1], *two_passes(tree, num_first, slot))
        assert found.wanted_logits.tobytes() == expected[:, :num_first].tobytes()
        is_used, num_walked = bool(rng.integers(2)), num_first
        if is_used:
            assert found.joined(behind.result()).wanted_logits.tobytes() == expected.tobytes()
            num_walked = len(tree)
        behind.drop()
        path = path_to(tree, int(rng.integers(num_walked)))
        for cache in caches:
            cache.commit(slot, path)
            cache.swap(0, 1)
            cache.cut(slot, 60)


@pytest.fixture(scope="module")
def whole(demo_folder: Path) -> HostTarget:
    return HostTarget.open(ModelPackage.open(demo_folder), 1)


@pytest.mark.parametrize("min_rows", [1, 2])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_two_passes_have_the_rows_of_one(num_stages: int, min_rows: int, split_demo: Split, whole: HostTarget) -> None:
    piped = pipeline_here(split_demo(num_stages)).with_min_rows(min_rows)
    assert_same_rows_of_two(whole.with_min_rows(min_rows), piped, num_stages)


@pytest.mark.parametrize("lost_at", [[1], [2], [3, 6], [7, 8, 9, 16], range(2, 40, 5)], ids=str)
def test_a_loss_in_either_pass_changes_no_row(lost_at: Collection[int], split_demo: Split, whole: HostTarget) -> None:
    piped = pipeline_here(split_demo(3), lost_at=lost_at)
    assert_same_rows_of_two(whole, piped, 0)
    assert piped.in_flight.epoch > 0


def test_nobody_waits_for_a_pass_that_is_dropped(split_demo: Split) -> None:
    piped = pipeline_here(split_demo(2))
    following, cache = stages_of(piped), piped.new_cache(1, 16)
    _, behind = piped.forward_two(cache, *two_passes(TREE, 2))
    assert len(following.frames) == 2
    received = list[FinishedPass]()
    receive = following.receive

    def received_one() -> FinishedPass:
        received.append(receive())
        return received[-1]

    following.receive = received_one  # type: ignore[method-assign]
    behind.drop()
    cache.commit(0, [0, 1])
    assert not received
    piped.forward(cache, Pass(0, [DraftTree.root(7)], [range(1)]))
    assert [each.number for each in received] == [2, 3]  # what came of the second is passed over


def test_only_the_second_nodes_are_sent_and_scored(split_demo: Split) -> None:
    piped = pipeline_here(split_demo(2))
    piped.forward_two(piped.new_cache(1, 16), *two_passes(TREE, 2))
    frames = [PassFrame.unpacked(memoryview(frame)) for frame in stages_of(piped).frames]
    assert [(frame.wanted.num_before, frame.num_nodes, frame.num_rows) for frame in frames] == [(0, 2, 2), (2, 3, 5)]
    assert [len(frame.steps) for frame in frames] == [1, 0]  # what happened to the cache is sent once


def test_a_second_pass_that_a_stage_refuses_ends_in_its_error(split_demo: Split) -> None:
    piped = pipeline_here(split_demo(2))
    following, receive = stages_of(piped), stages_of(piped).receive

    def refused() -> FinishedPass:
        came = receive()
        return came if came.number == 1 else FinishedPass(came.number, ProviderError("No memory."))

    following.receive = refused  # type: ignore[method-assign]
    _, behind = piped.forward_two(piped.new_cache(1, 16), *two_passes(TREE, 2))
    with pytest.raises(ProviderError, match="No memory"):
        behind.result()


def test_stages_are_reached_again_once_where_another_lane_has_done_so(split_demo: Split) -> None:
    piped = pipeline_here(split_demo(2), lost_at=[2])
    cache = piped.new_cache(1, 16)
    _, behind = piped.forward_two(cache, *two_passes(TREE, 2))
    piped.in_flight.come_back(StageLostError("Stage 1 is gone."), 0)
    expected = piped.forward(piped.new_cache(1, 16), Pass(0, [TREE], [range(5)])).top_logits[:, 2:]
    assert behind.result().top_logits.tobytes() == expected.tobytes()
    assert piped.in_flight.epoch == 1


def test_an_interrupt_leaves_no_pass_awaited(split_demo: Split) -> None:
    piped = pipeline_here(split_demo(2))
    following, receive = stages_of(piped), stages_of(piped).receive

    def interrupted() -> FinishedPass:
        raise KeyboardInterrupt

    following.receive = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        piped.forward_two(piped.new_cache(1, 16), *two_passes(TREE, 2))
    following.receive = receive  # type: ignore[method-assign]
    assert not piped.in_flight._sent_at


class SlowToSend:
    """A `FollowingStages` whose passes come back while they are sent, as where the sender waits for a processor."""

    facts: tuple[str, ...] = ()
    slowest_s = 1e-9

    def __init__(self) -> None:
        self.now_s = 0.0

    def send(self, frame: bytes) -> int:
        self.now_s += 0.25
        return 1

    def receive(self) -> FinishedPass:
        return FinishedPass(1, memoryview(b""))

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
