"""A stage answers whoever greets it, whatever others send; it forgets the oldest, and a full link costs one pass."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.execution.pipeline.following_stage import FollowingStage
from reader_edge_runtime.execution.pipeline.handshake import (
    FACT_FRAMES,
    FAULT,
    HEADS,
    HELLO,
    PASS,
    RESULT,
    WELCOME,
    Head,
)
from reader_edge_runtime.execution.pipeline.logged_cache import NEW, CacheStep
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.target import Pass
from tests.stages_here import free_address, open_stages

zmq = pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")

from reader_edge_runtime.execution.pipeline.links import Links  # noqa: E402 (needs the extra)
from reader_edge_runtime.execution.pipeline.stage_server import StageServer  # noqa: E402

Split = Callable[[int], Path]
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
        self.socket.send_multipart([HEADS.pack(Head(what, bytes([client] * 16), client)), *parts])

    def received(self) -> tuple[Head, bytes]:
        assert self.socket.poll(10_000), "the stage does not answer"
        head, data = self.socket.recv_multipart()
        return HEADS.unpack(memoryview(head)), data

    def greeted(self, client: int, address: str = "") -> None:
        self.send(HELLO, client, FACT_FRAMES.pack({"next": address}))
        assert self.received()[0].what == WELCOME

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.links.close()


@pytest.fixture
def served(split_demo: Split) -> Iterator[Served]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        served = Served(split_demo(2), socket)
        try:
            yield served
        finally:
            served.close()
            socket.close(linger=0)


def test_what_is_nothing_for_a_stage_is_passed_over(served: Served) -> None:
    served.socket.send_multipart([b"x" * 28, b"x"])
    for what, parts in ((RESULT, (b"x",)), (HELLO, (b"{}", b"{}")), (77, (FRAME,))):
        served.send(what, 1, *parts)
    served.greeted(2)
    served.send(PASS, 2, FRAME)
    head, made = served.received()
    assert (head.what, head.number, len(made)) == (RESULT, 2, 4 * 256)


def test_a_fault_says_whether_rows_are_lost(served: Served) -> None:
    served.greeted(1)
    for client, sentence in ((1, "truncated"), (2, "was started since it was greeted")):
        served.send(PASS, client, FRAME[:4])
        head, data = served.received()
        facts = FACT_FRAMES.unpack(memoryview(data))
        assert (head.what, facts["lost"], sentence in facts["fault"]) == (FAULT, "all", True)
        assert facts["fault"] == served.lines[-1]


def test_of_too_many_who_ask_the_oldest_is_forgotten_with_its_link(served: Served) -> None:
    for client in range(1, 9):
        served.greeted(client, free_address())
    served.greeted(1, free_address())  # again: it is no longer the oldest, and its first link is closed
    served.greeted(9)
    assert len(served.links._sockets) == 1 + 7
    served.send(PASS, 2, FRAME)
    assert served.received()[0].what == FAULT
    served.send(PASS, 9, FRAME)
    assert served.received()[0].what == RESULT


def test_a_link_that_takes_no_more_costs_passes_and_nothing_else(served: Served) -> None:
    served.greeted(1, free_address())  # where nobody listens
    for _ in range(70):
        served.send(PASS, 1, FRAME)
    served.greeted(2)
    assert served.lines.count("A link is full: a pass is dropped.") == 70 - 64


def test_an_address_that_is_taken_is_refused() -> None:
    links, address = Links(None), free_address()
    links.listen(address, 1 << 20)
    with pytest.raises(ConfigError, match=rf"Nothing can listen at {address} \(Address already in use\)"):
        links.listen(address, 1 << 20)
    links.close()
