"""Stages behind links of this machine, right ones and scripted ones. Needs the extra `pipeline`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.pipeline.following_stage import FollowingStage
from reader_edge_runtime.execution.pipeline.handshake import (
    FACT_FRAMES,
    HEADERS,
    HELLO,
    MICROSECONDS,
    WELCOME,
    Header,
    facts_of,
)
from reader_edge_runtime.execution.pipeline.links import Links
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget
from reader_edge_runtime.execution.pipeline.stage_server import StageServer
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Pass
from tests.stages_here import free_address

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


@contextmanager
def scripted(last: HostStage, says: Callable[[Header], list[tuple[bytes, ...]]], **facts: str) -> Iterator[str]:
    """A stage that greets with the right facts, but for some, and sends what a test says to all other messages."""
    is_over, links, address = threading.Event(), Links(None), free_address()
    socket = links.listen(address, 1 << 24)
    here = facts_of(last)
    layers = {"first layer": "0", "next layer": here["first layer"]}
    facts_there = here | layers | {"stage": "1 of 2", MICROSECONDS: "1"} | facts

    def serve() -> None:
        while not is_over.is_set():
            if socket.poll(50):
                peer, packed, _ = socket.recv_multipart()
                header = HEADERS.unpack(memoryview(packed))
                welcome = [(HEADERS.pack(replace(header, what=WELCOME)), FACT_FRAMES.pack(facts_there))]
                for parts in welcome if header.what == HELLO else says(header):
                    socket.send_multipart([peer, *parts])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address
    finally:
        is_over.set()
        thread.join()
        links.close()


def top_ids(target: PipelineTarget, manifest: Manifest, then: Callable[[], object]) -> list[list[int]]:
    """Of a text in two passes, between which something happens."""
    cache = target.new_cache(1, 16)
    target.forward(cache, WANTED)
    cache.commit(0, range(3))
    then()
    found: list[list[int]] = target.forward(cache, WANTED).top_ids[0].tolist()
    return found
