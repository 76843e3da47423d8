"""A stage that was lost, or is silent, is named; it comes back, moves, or a spare box goes on, and rows come again."""

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from reader_edge_runtime.errors import PackageError, StageLostError
from reader_edge_runtime.execution.pipeline import ring as ring_module
from reader_edge_runtime.execution.pipeline.following_stage import FollowingStage
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget
from reader_edge_runtime.package.pipeline_file import KEY_NAME, read_key
from tests.stages_here import free_address, open_stages, stage_process

zmq = pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")

from reader_edge_runtime.execution.pipeline.ring import Ring  # noqa: E402
from tests.runtime.execution.pipeline.ring_stages import WANTED, scripted, served, top_ids  # noqa: E402

Split = Callable[[int], Path]


def test_a_spare_box_goes_on_at_once_where_nothing_listens(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "ANSWER_S", 1000.0)  # which nobody waits
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], None) as [spare]:
        with served([FollowingStage(first)], None) as [address]:
            ring = Ring(last, [f"{address} {spare}"], None)
            target = PipelineTarget(last, ring)
            expected = top_ids(target, last.manifest, lambda: None)
            cache = target.new_cache(1, 16)
            target.forward(cache, WANTED)
            cache.commit(0, range(3))
        with pytest.warns(RuntimeWarning, match=f"Stage 1 at {address} is gone .*meanwhile {spare} may go on"):
            assert target.forward(cache, WANTED).top_ids[0].tolist() == expected
        ring.close()
        Ring(last, [f"{address} {spare}"], None).close()  # which is found where the first one is not there
    monkeypatch.setattr(ring_module, "ANSWER_S", 0.3)
    with pytest.raises(StageLostError, match=f"Stage 1 at {address} or {spare} does not answer"):
        Ring(last, [f"{address} {spare}"], None)


@pytest.mark.long
def test_a_spare_box_goes_on_where_the_first_is_silent(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "ANSWER_S", 0.5)
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], None) as [spare], socket.create_server(("127.0.0.1", 0)) as silent:
        ring = Ring(last, [f"tcp://127.0.0.1:{silent.getsockname()[1]} {spare}"], None)
        assert spare in ring.facts[0]
        ring.close()


@pytest.mark.long
@pytest.mark.parametrize("facts", [{"stage": "1 of 9"}, {"next layer": "1"}], ids=["model", "layers"])
def test_a_wrong_spare_box_keeps_nobody_from_the_first(facts: dict[str, str], split_demo: Split) -> None:
    first, last = open_stages(split_demo(2))
    stages, address, lost = [FollowingStage(first)], free_address(), StageLostError("Stage 1 is gone.")
    is_warned = pytest.warns(RuntimeWarning, match="all boxes need stages of one split")
    with scripted(last, lambda head: [], **facts) as spare:
        with served(stages, None, address):
            ring = Ring(last, [f"{address} {spare}"], None)
        ring.reconnect_s = 0.5
        with pytest.warns(RuntimeWarning, match="is gone"), is_warned, pytest.raises(StageLostError):
            ring.come_back(lost)
        ring.reconnect_s = 20.0
        with served(stages, None, address):
            with pytest.warns(RuntimeWarning, match="is gone"):
                ring.come_back(lost)
            assert address in ring.facts[0]
            ring.close()


def test_an_interrupted_wait_leaves_no_link(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], None) as addresses:
        ring = Ring(last, addresses, None)
        monkeypatch.setattr(ring, "_is_answered", Mock(side_effect=KeyboardInterrupt))
        with pytest.warns(RuntimeWarning, match="is gone"), pytest.raises(KeyboardInterrupt):
            ring.come_back(StageLostError("Stage 1 is gone."))
        with pytest.raises(StageLostError, match="The stages of this model were lost"):
            ring.send(b"frame")


def test_an_interrupted_message_leaves_no_half_of_it(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], None) as addresses:
        ring = Ring(last, addresses, None)
        half_sent = Mock(send_multipart=Mock(side_effect=KeyboardInterrupt))
        monkeypatch.setattr(ring, "_sockets", [half_sent])
        with pytest.raises(KeyboardInterrupt):
            ring.send(b"frame")
        assert not ring._sockets
        ring._meet(time.monotonic() + 20)
        ring.send(b"frame")
        monkeypatch.setattr(ring_module, "parts_of", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ring.receive()
        assert not ring._sockets
        ring.close()


@pytest.mark.long
def test_a_stage_that_was_moved_is_found_at_its_new_address(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "ANSWER_S", 1.0)
    first, last = open_stages(split_demo(2))
    found: list[list[str] | None] = []

    def find() -> list[str]:
        addresses = found.pop(0) if len(found) > 1 else found[0]
        if addresses is None:
            raise PackageError("'pipeline.json' is not valid JSON")
        return addresses

    with served([FollowingStage(first)], None) as [new]:
        with served([FollowingStage(first)], None) as [old]:
            found[:] = [[old]]
            target = PipelineTarget(last, Ring(last, [old], None, find))
            expected = top_ids(target, last.manifest, lambda: None)
        found[:] = [None, [new, new], [new]]  # while it is being written, of another pipeline, and at last
        with pytest.warns(RuntimeWarning, match=f"Stage 1 at {old} is gone"):
            assert top_ids(target, last.manifest, lambda: None) == expected


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_a_lost_stage_is_named_in_time_and_its_rows_come_again(
    signal_number: signal.Signals, split_demo: Split
) -> None:
    folder, address = split_demo(2), free_address()
    last = open_stages(folder)[-1]
    with stage_process(folder / "1", address) as process:
        ring = Ring(last, [address], read_key(folder / KEY_NAME))  # which the command finds beside the stage
        target = PipelineTarget(last, ring)
        expected = top_ids(target, last.manifest, lambda: None)
        ring.reconnect_s = 0.0
        started = time.monotonic()
        with (
            pytest.warns(RuntimeWarning, match=f"Stage 1 at {address} is gone or silent"),
            pytest.raises(StageLostError),
        ):
            top_ids(target, last.manifest, lambda: process.send_signal(signal_number))
        assert time.monotonic() - started < 5 + 5  # the five, and what a busy machine adds
    cache = target.new_cache(1, 16)
    with stage_process(folder / "1", address) as process:
        ring.reconnect_s = 20.0
        with pytest.warns(RuntimeWarning, match="did not come back"):
            target.forward(cache, WANTED)
        assert top_ids(target, last.manifest, lambda: None) == expected
        ring.close()


def test_a_process_that_was_stopped_still_waits_as_long(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], None) as addresses:
        ring = Ring(last, addresses, None)
        meet, ends, clock = ring._meet, list[float](), [time.monotonic()]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])

        def stopped_at_first(ends_at: float) -> None:
            ends.append(ends_at - clock[0])
            if len(ends) == 1:
                clock[0] += 600
                raise StageLostError("Stage 1 is gone.")
            meet(ends_at)

        monkeypatch.setattr(ring, "_meet", stopped_at_first)
        with pytest.warns(RuntimeWarning, match=r"Stage 1 is gone\. Answers wait up to 30 s\."):
            ring.come_back(StageLostError("Stage 1 is gone."))
        assert ends == pytest.approx([5, 5])
        with pytest.warns(RuntimeWarning, match=r"Stage 1 is gone\."):  # each loss is reported
            ring.come_back(StageLostError("Stage 1 is gone."))
        ring.close()


def test_a_pass_that_nobody_hands_on_is_lost_after_a_while(split_demo: Split) -> None:
    last = open_stages(split_demo(2))[-1]
    with scripted(last, lambda head: []) as address:
        ring = Ring(last, [address], None)
        ring.pass_s = 0.2
        ring.send(b"frame")
        with pytest.raises(StageLostError, match=r"No stage handed a pass on within 0 s, though all of them are there"):
            ring.receive()
        ring.close()


def test_a_link_that_takes_nothing_more_is_lost(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], None) as [address]:
        ring = Ring(last, [address], None)
        monkeypatch.setattr(ring, "_sockets", [Mock(send_multipart=Mock(side_effect=zmq.Again))])
        with pytest.raises(StageLostError, match=f"Stage 1 at {address} takes nothing more: start it again"):
            ring.send(b"frame")
        monkeypatch.undo()
        ring.close()
