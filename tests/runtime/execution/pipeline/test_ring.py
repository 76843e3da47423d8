"""Stages behind links have the same rows; another stage or a wrong message is named, and costs no other client."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, FrameError, ProviderError, StageLostError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.native import instructions_here
from reader_edge_runtime.execution.pipeline import ring as ring_module
from reader_edge_runtime.execution.pipeline import stage_server
from reader_edge_runtime.execution.pipeline.following_stage import FollowingStage
from reader_edge_runtime.execution.pipeline.handshake import (
    FACT_FRAMES,
    FAULT,
    HEADERS,
    HELLO,
    PASS,
    RESULT,
    WELCOME,
    Header,
)
from reader_edge_runtime.execution.pipeline.in_flight import RowsLostError
from reader_edge_runtime.execution.pipeline.links import Links
from reader_edge_runtime.execution.pipeline.logged_cache import NEW, CacheStep
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget
from reader_edge_runtime.execution.pipeline.ring import Ring
from reader_edge_runtime.execution.pipeline.stage_server import StageServer
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import KEY_NAME, read_key
from reader_edge_runtime.target import Pass
from tests.random_operations import check_random_operations
from tests.runtime.execution.pipeline import ring_stages
from tests.runtime.execution.pipeline.ring_stages import scripted, served
from tests.stages_here import assert_same_rows, free_address, open_stages, stage_process

zmq = pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")


Split = Callable[[int], Path]
KEY = bytes(range(32))


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
def test_another_key_gets_no_answer(key: bytes | None, split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "ANSWER_S", 1.0)
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], KEY) as addresses:
        with pytest.raises(StageLostError, match=rf"Stage 1 at {addresses[0]} does not answer: start"):
            Ring(last, addresses, key)
        Ring(last, addresses, KEY).close()


@pytest.mark.long
def test_stages_of_another_split_are_named(split_demo: Split) -> None:
    first, last = open_stages(split_demo(3))[0], open_stages(split_demo(2))[-1]
    with served([FollowingStage(first)], None) as [address]:
        sentence = f"At {address} is stage 1 of 3, and here 1 of 2: all boxes need"
        with pytest.raises(ProviderError, match=sentence):
            Ring(last, [address], None)


def test_a_model_that_was_cut_at_another_layer_is_not_mixed(split_demo: Split) -> None:
    last = open_stages(split_demo(2))[-1]
    refused = pytest.raises(ProviderError, match=r"The stage here begins with layer [2-9], where layer 1 is next")
    with scripted(last, lambda header: [], **{"next layer": "1"}) as address, refused:
        Ring(last, [address], None)


def test_what_is_no_message_of_ours_is_passed_over(split_demo: Split, demo_folder: Path) -> None:
    first, last = open_stages(split_demo(2))
    with served([FollowingStage(first)], None) as [address]:
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.connect(address)
            passed, greeting = (HEADERS.pack(Header(what, bytes(16), 0)) for what in (PASS, HELLO))
            for parts in ([b""], [b"x" * len(greeting)], [passed, b"x"], [greeting, b"{"]):
                stranger.send_multipart(parts)
            assert stranger.poll(5000)  # the last one greets, and learns what is wrong
            stranger.close(linger=0)
        ring = Ring(last, [address], None)
        assert_same_rows(HostTarget.open(ModelPackage.open(demo_folder), 1), PipelineTarget(last, ring), 2)
        ring.close()


def test_no_address_that_others_reach_goes_without_a_key() -> None:
    links = Links(None)
    with pytest.raises(ConfigError, match=r"Others can reach tcp://0\.0\.0\.0:5551: give the pipeline's key"):
        links.listen("tcp://0.0.0.0:5551", 1 << 20)
    links.close()


@pytest.mark.long
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


def test_what_a_stage_cannot_do_comes_with_its_name(split_demo: Split) -> None:
    last = open_stages(split_demo(2))[-1]
    kinds = iter(["", "rows", "all"])

    def says(header: Header) -> list[tuple[bytes, ...]]:
        fault = FACT_FRAMES.pack({"fault": "The disk is full.", "lost": next(kinds)})
        strange = HEADERS.pack(replace(header, what=FAULT, client=bytes(16))), fault
        return [strange, (HEADERS.pack(replace(header, what=FAULT)), fault)]

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
    with scripted(last, lambda header: [(HEADERS.pack(header),)]) as address:
        ring = Ring(last, [address], None)
        ring.send(b"frame")
        with pytest.raises(FrameError, match="A message of 1 parts came from a stage"):
            ring.receive()
        ring.close()


def test_other_kernels_are_one_warning(split_demo: Split) -> None:
    last = open_stages(split_demo(2))[-1]
    with scripted(last, lambda header: [], **{"instruction set": "neon"}) as address:
        with pytest.warns(RuntimeWarning, match="runs other kernels"):
            ring = Ring(last, [address], None)
        ring._meet(time.monotonic() + 5)  # warnings are errors
        ring.close()


@pytest.mark.long
def test_trees_over_unlike_processors_have_the_same_rows(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_another_answer_to_a_greeting_is_refused(split_demo: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_stages, "WELCOME", RESULT)
    last = open_stages(split_demo(2))[-1]
    with scripted(last, lambda header: []) as address, pytest.raises(FrameError, match="with something else"):
        Ring(last, [address], None)


FRAME = PassFrame(1, [CacheStep(NEW, (), (1, 16))], (0,), Pass(0, [DraftTree.root(5)], [range(1)]), 1).packed()


class Served:
    """The first of two stages behind a link of this machine, and a socket of someone who asks it."""

    def __init__(self, folder: Path, socket: Any) -> None:
        self.lines: list[str] = []
        self.links = Links(None)
        self.socket = socket
        self._is_over = threading.Event()
        address = free_address()
        server = StageServer(FollowingStage(open_stages(folder)[0]), self.links, address, self.lines.append)
        self._thread = threading.Thread(target=server.serve, args=(self._is_over.is_set,))
        self._thread.start()
        socket.connect(address)

    def send(self, what: int, client: int, *parts: bytes) -> None:
        self.socket.send_multipart([HEADERS.pack(Header(what, bytes([client] * 16), client)), *parts])

    def received(self) -> tuple[Header, bytes]:
        assert self.socket.poll(10_000), "the stage does not answer"
        header, data = self.socket.recv_multipart()
        return HEADERS.unpack(memoryview(header)), data

    def greeted(self, client: int, address: str = "") -> None:
        self.send(HELLO, client, FACT_FRAMES.pack({"next": address}))
        assert self.received()[0].what == WELCOME

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.links.close()


@pytest.fixture
def server_of(split_demo: Split) -> Iterator[Served]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        server_of = Served(split_demo(2), socket)
        try:
            yield server_of
        finally:
            server_of.close()
            socket.close(linger=0)


def test_what_is_nothing_for_a_stage_is_passed_over(server_of: Served) -> None:
    server_of.socket.send_multipart([b"x" * 28, b"x"])
    for what, parts in ((RESULT, (b"x",)), (HELLO, (b"{}", b"{}")), (77, (FRAME,))):
        server_of.send(what, 1, *parts)
    server_of.greeted(2)
    server_of.send(PASS, 2, FRAME)
    header, made = server_of.received()
    assert (header.what, header.number, len(made)) == (RESULT, 2, 4 * 256)


def test_a_fault_says_whether_rows_are_lost(server_of: Served) -> None:
    server_of.greeted(1)
    for client, sentence in ((1, "truncated"), (2, "was started since it was greeted")):
        server_of.send(PASS, client, FRAME[:4])
        header, data = server_of.received()
        facts = FACT_FRAMES.unpack(memoryview(data))
        assert (header.what, facts["lost"], sentence in facts["fault"]) == (FAULT, "all", True)
        assert facts["fault"] == server_of.lines[-1]


def test_of_too_many_who_ask_the_oldest_is_forgotten_with_its_link(server_of: Served) -> None:
    for client in range(1, 9):
        server_of.greeted(client, free_address())
    server_of.greeted(1, free_address())  # again: it is no longer the oldest, and its first link is closed
    server_of.greeted(9)
    assert len(server_of.links._sockets) == 1 + 7
    server_of.send(PASS, 2, FRAME)
    assert server_of.received()[0].what == FAULT
    server_of.send(PASS, 9, FRAME)
    assert server_of.received()[0].what == RESULT


def test_a_link_that_takes_no_more_costs_passes_and_nothing_else(server_of: Served) -> None:
    server_of.greeted(1, free_address())  # where nobody listens
    for _ in range(70):
        server_of.send(PASS, 1, FRAME)
    server_of.greeted(2)
    assert server_of.lines.count("A link is full: a pass is dropped.") == 70 - 64


def test_an_address_that_is_taken_is_refused() -> None:
    links, address = Links(None), free_address()
    links.listen(address, 1 << 20)
    with pytest.raises(ConfigError, match=rf"Nothing can listen at {address} \(Address already in use\)"):
        links.listen(address, 1 << 20)
    links.close()
