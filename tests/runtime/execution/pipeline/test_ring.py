"""Stages behind links have the same rows; a box that is gone, silent or another one is named in one sentence."""

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, PackageError, ProviderError, StageLostError
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.native import instructions_here
from reader_edge_runtime.execution.pipeline import ring as ring_module
from reader_edge_runtime.execution.pipeline.following_stage import FollowingStage
from reader_edge_runtime.execution.pipeline.greeting import (
    FAULT,
    HELLO,
    MICROSECONDS,
    PASS,
    RESULT,
    WELCOME,
    Head,
    facts_of,
    packed_greeting,
)
from reader_edge_runtime.execution.pipeline.pass_frame import FrameError
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget
from reader_edge_runtime.execution.pipeline.under_way import RowsLostError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import KEY_NAME, read_key
from reader_edge_runtime.target import Pass
from tests.random_operations import check_random_operations
from tests.stages_here import assert_same_rows, free_address, open_stages, stage_process

zmq = pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")

from reader_edge_runtime.execution.pipeline import stage_server  # noqa: E402
from reader_edge_runtime.execution.pipeline.links import Links  # noqa: E402 (needs the extra)
from reader_edge_runtime.execution.pipeline.ring import Ring  # noqa: E402
from reader_edge_runtime.execution.pipeline.stage_server import StageServer  # noqa: E402

Split = Callable[[int], Path]
KEY = bytes(range(32))
WANTED = Pass(0, [DraftTree.chain([5, 6, 7])], [range(3)], wants_logits=True)


@contextmanager
def served(stages: list[FollowingStage], key: bytes | None, *at: str) -> Iterator[list[str]]:
    """Stages behind links of this machine; their addresses, which may be given."""
    is_over, threads, opened = threading.Event(), [], []
    addresses = list(at) or [free_address() for _ in stages]
    for stage, address in zip(stages, addresses, strict=True):
        opened.append(Links(key))
        server = StageServer(stage, opened[-1], address, lambda line: None)
        threads.append(threading.Thread(target=server.serve, args=(is_over.is_set,)))
    for thread in threads:
        thread.start()
    try:
        yield addresses
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        for links in opened:
            links.close()


@pytest.mark.parametrize(("num_stages", "key"), [(2, None), (3, KEY)], ids=["plain", "encrypted"])
def test_rows_behind_links_have_the_bits_of_the_whole_model(
    num_stages: int, key: bytes | None, split_demo: Split, demo_folder: Path
) -> None:
    *first, last = open_stages(split_demo(num_stages))
    with served(list(map(FollowingStage, first)), key) as addresses:
        ring = Ring(last, addresses, key)
        assert_same_rows(HostTarget.open(ModelPackage.open(demo_folder), 1), PipelineTarget(last, ring), 6)
        ring.close()


@pytest.mark.parametrize("key", [None, bytes(32)])
def test_who_has_another_key_is_not_answered(
    key: bytes | None, split_demo: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "ANSWER_S", 1.0)
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], KEY) as addresses:
        with pytest.raises(StageLostError, match=rf"Stage 1 at {addresses[0]} does not answer: start"):
            Ring(last, addresses, key)
        Ring(last, addresses, KEY).close()


def test_stages_of_another_split_are_named(split_demo: Split) -> None:
    first, last = open_stages(split_demo(3))[0], open_stages(split_demo(2))[-1]
    with served([FollowingStage(first)], None) as [address]:
        sentence = f"At {address} is stage 1 of 3, and here 1 of 2: all boxes need"
        with pytest.raises(ProviderError, match=sentence):
            Ring(last, [address], None)


def test_a_model_that_was_cut_at_another_layer_is_not_mixed(split_demo: Split) -> None:
    last = open_stages(split_demo(2))[-1]
    refused = pytest.raises(ProviderError, match=r"The stage here begins with layer [2-9], where layer 1 is next")
    with scripted(last, lambda head: [], **{"next layer": "1"}) as address, refused:
        Ring(last, [address], None)


def test_a_spare_box_goes_on_at_once_where_nothing_listens_any_more(
    split_demo: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_spare_box_goes_on_where_the_first_one_says_nothing(
    split_demo: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "ANSWER_S", 0.5)
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], None) as [spare], socket.create_server(("127.0.0.1", 0)) as silent:
        ring = Ring(last, [f"tcp://127.0.0.1:{silent.getsockname()[1]} {spare}"], None)
        assert spare in ring.facts[0]
        ring.close()


@pytest.mark.parametrize("facts", [{"stage": "1 of 9"}, {"next layer": "1"}], ids=["model", "layers"])
def test_a_spare_box_with_something_else_is_told_and_keeps_nobody_from_the_first(
    facts: dict[str, str], split_demo: Split
) -> None:
    first, last = open_stages(split_demo(2))
    stages, address, lost = [FollowingStage(first)], free_address(), StageLostError("Stage 1 is gone.")
    is_told = pytest.warns(RuntimeWarning, match="all boxes need stages of one split")
    with scripted(last, lambda head: [], **facts) as spare:
        with served(stages, None, address):
            ring = Ring(last, [f"{address} {spare}"], None)
        ring.patience_s = 0.5
        with pytest.warns(RuntimeWarning, match="is gone"), is_told, pytest.raises(StageLostError):
            ring.come_back(lost)
        ring.patience_s = 20.0
        with served(stages, None, address):
            with pytest.warns(RuntimeWarning, match="is gone"):
                ring.come_back(lost)
            assert address in ring.facts[0]
            ring.close()


def test_an_interrupt_while_a_stage_is_waited_for_leaves_no_link_that_was_not_greeted(
    split_demo: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], None) as addresses:
        ring = Ring(last, addresses, None)
        monkeypatch.setattr(ring, "_is_answered", Mock(side_effect=KeyboardInterrupt))
        with pytest.warns(RuntimeWarning, match="is gone"), pytest.raises(KeyboardInterrupt):
            ring.come_back(StageLostError("Stage 1 is gone."))
        with pytest.raises(StageLostError, match="The stages of this model were lost"):
            ring.send(b"frame")


def test_an_interrupt_amid_a_message_leaves_no_half_of_it_to_the_next(
    split_demo: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_is_no_message_of_ours_is_passed_over(split_demo: Split, demo_folder: Path) -> None:
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], None) as [address]:
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.connect(address)
            passed, greeting = (Head(what, bytes(16), 0).packed() for what in (PASS, HELLO))
            for parts in ([b""], [b"x" * len(greeting)], [passed, b"x"], [greeting, b"{"]):
                stranger.send_multipart(parts)
            assert stranger.poll(5000)  # the last one greets, and is told what is wrong
            stranger.close(linger=0)
        ring = Ring(last, [address], None)
        assert_same_rows(HostTarget.open(ModelPackage.open(demo_folder), 1), PipelineTarget(last, ring), 2)
        ring.close()


def test_no_address_that_others_reach_goes_without_a_key() -> None:
    links = Links(None)
    with pytest.raises(ConfigError, match=r"Others can reach tcp://0\.0\.0\.0:5551: give the pipeline's key"):
        links.listen("tcp://0.0.0.0:5551", 1 << 20)
    links.close()


def top_ids(target: PipelineTarget, manifest: Manifest, then: Callable[[], object]) -> list[list[int]]:
    """Of a text in two passes, between which something happens."""
    cache = target.new_cache(1, 16)
    target.forward(cache, WANTED)
    cache.commit(0, range(3))
    then()
    found: list[list[int]] = target.forward(cache, WANTED).top_ids[0].tolist()
    return found


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_a_lost_stage_is_named_within_five_seconds_and_its_rows_come_again(
    signal_number: signal.Signals, split_demo: Split
) -> None:
    folder, address = split_demo(2), free_address()
    last = open_stages(folder)[-1]
    with stage_process(folder / "1", address) as process:
        ring = Ring(last, [address], read_key(folder / KEY_NAME))  # which the command finds beside the stage
        target = PipelineTarget(last, ring)
        expected = top_ids(target, last.manifest, lambda: None)
        ring.patience_s = 0.0
        started = time.monotonic()
        with (
            pytest.warns(RuntimeWarning, match=f"Stage 1 at {address} is gone or silent"),
            pytest.raises(StageLostError),
        ):
            top_ids(target, last.manifest, lambda: process.send_signal(signal_number))
        assert time.monotonic() - started < 5 + 5  # the five, and what a busy machine adds
    cache = target.new_cache(1, 16)
    with stage_process(folder / "1", address) as process:
        ring.patience_s = 20.0
        with pytest.warns(RuntimeWarning, match="did not come back"):
            target.forward(cache, WANTED)
        assert top_ids(target, last.manifest, lambda: None) == expected
        ring.close()


def test_a_process_that_was_stopped_itself_still_gives_a_lost_stage_its_time(
    split_demo: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        with pytest.warns(RuntimeWarning, match=r"Stage 1 is gone\."):  # each loss is told
            ring.come_back(StageLostError("Stage 1 is gone."))
        ring.close()


def test_what_a_stage_says_of_its_time_is_a_number(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = open_stages(split_demo(2))
    stage = FollowingStage(first)
    with served([stage], None) as addresses:
        ring = Ring(last, addresses, None)
        assert 0 < ring.slowest_s < 10
        assert not any("µs" in fact for fact in ring.facts)  # of which nothing else may depend
        ring.close()
    monkeypatch.setattr(stage_server, "MICROSECONDS", "µs")
    with served([stage], None) as addresses, pytest.raises(FrameError, match="A stage's pass takes '' µs"):
        Ring(last, addresses, None)


@contextmanager
def scripted(last: HostStage, says: Callable[[Head], list[tuple[bytes, ...]]], **facts: str) -> Iterator[str]:
    """A stage that greets with the right facts, but for some, and sends what a test says to all other messages."""
    is_over, links, address = threading.Event(), Links(None), free_address()
    socket = links.listen(address, 1 << 24)
    here = facts_of(last)
    layers = {"first layer": "0", "next layer": here["first layer"]}
    told = here | layers | {"stage": "1 of 2", MICROSECONDS: "1"} | facts

    def serve() -> None:
        while not is_over.is_set():
            if socket.poll(50):
                peer, packed, _ = socket.recv_multipart()
                head = Head.unpacked(memoryview(packed))
                welcome = [(head._replace(what=WELCOME).packed(), packed_greeting(told))]
                for parts in welcome if head.what == HELLO else says(head):
                    socket.send_multipart([peer, *parts])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address
    finally:
        is_over.set()
        thread.join()
        links.close()


def test_what_a_stage_cannot_do_is_told_with_its_name(split_demo: Split) -> None:
    last = open_stages(split_demo(2))[-1]
    kinds = iter(["", "rows", "all"])

    def says(head: Head) -> list[tuple[bytes, ...]]:
        fault = packed_greeting({"fault": "The disk is full.", "lost": next(kinds)})
        strange = head._replace(what=FAULT, asker=bytes(16)).packed(), fault
        return [strange, (head._replace(what=FAULT).packed(), fault)]

    with scripted(last, says) as address:
        ring = Ring(last, [address], None)
        for kind in (ProviderError, RowsLostError, StageLostError):
            number = ring.send(b"frame")
            while (came := ring.receive()).number != number:
                pass
            assert (type(came.data), str(came.data)) == (kind, f"Stage 1 at {address} failed: The disk is full.")
        ring.close()


def test_a_message_of_another_shape_is_refused(split_demo: Split) -> None:
    last = open_stages(split_demo(2))[-1]
    with scripted(last, lambda head: [(head.packed(),)]) as address:
        ring = Ring(last, [address], None)
        ring.send(b"frame")
        with pytest.raises(FrameError, match="A message of 1 parts came from a stage"):
            ring.receive()
        ring.close()


def test_other_kernels_are_told_once(split_demo: Split) -> None:
    last = open_stages(split_demo(2))[-1]
    with scripted(last, lambda head: [], **{"instruction set": "neon"}) as address:
        with pytest.warns(RuntimeWarning, match="runs other kernels"):
            ring = Ring(last, [address], None)
        ring._meet(time.monotonic() + 5)  # warnings are errors
        ring.close()


def test_trees_over_unlike_processors_have_the_rows_of_single_tokens(
    split_demo: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, address = open_stages(split_demo(2))[-1], free_address()
    others = [name for name in instructions_here() if name != last.instructions]
    if not others:
        pytest.skip("this processor has one set of instructions that kernels are for")
    monkeypatch.setenv("READER_EDGE_INSTRUCTIONS", others[-1])
    with stage_process(split_demo(2) / "1", address):
        with pytest.warns(RuntimeWarning, match=f"instruction set {others[-1]} there, {last.instructions} here"):
            ring = Ring(last, [address], read_key(split_demo(2) / KEY_NAME))
        assert check_random_operations(PipelineTarget(last, ring), seed=2, num_operations=30) > 0
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


def test_who_answers_a_greeting_with_something_else_is_refused(
    split_demo: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "WELCOME", RESULT)
    last = open_stages(split_demo(2))[-1]
    with scripted(last, lambda head: []) as address, pytest.raises(FrameError, match="with something else"):
        Ring(last, [address], None)
