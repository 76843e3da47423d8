"""Stages behind links have the same rows; a box that is gone, silent or another one is named in one sentence."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.pipeline import ring as ring_module
from reader_edge_runtime.execution.pipeline.following_stage import FollowingStage
from reader_edge_runtime.execution.pipeline.greeting import HELLO, PASS, Head
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget, StageLostError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.stages_here import assert_same_rows, free_address, open_stages, stage_process

zmq = pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")

from reader_edge_runtime.execution.pipeline.links import Links  # noqa: E402 (needs the extra)
from reader_edge_runtime.execution.pipeline.ring import Ring  # noqa: E402
from reader_edge_runtime.execution.pipeline.stage_server import StageServer  # noqa: E402

Split = Callable[[int], Path]
KEY = bytes(range(32))
WANTED = Pass(0, [DraftTree.chain([5, 6, 7])], [range(3)], wants_logits=True)


@contextmanager
def served(stages: list[FollowingStage], key: bytes | None) -> Iterator[list[str]]:
    """Stages behind links of this machine; their addresses."""
    is_over, addresses, threads, opened = threading.Event(), [], [], []
    for stage in stages:
        addresses.append(free_address())
        opened.append(Links(key))
        server = StageServer(stage, opened[-1], addresses[-1], lambda line: None)
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
        ring = Ring(last, [address], None)
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
