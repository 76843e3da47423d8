"""What a step sends, by link and kind."""

import pytest

pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")

from benchmarks.pipeline.sent_bytes import lines, link_bytes
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.pipeline.logged_cache import MOVE, CacheStep
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.target import Pass


def frame(num_nodes: int, *steps: CacheStep) -> bytes:
    return PassFrame(1, steps, [64], Pass(0, [DraftTree.chain([5] * num_nodes)], [range(1)]), 1).packed()


def test_each_link_has_its_own_kinds_and_they_are_all_that_is_sent() -> None:
    moved = frame(3, CacheStep(MOVE, (64,), (0, 64, 1)))
    first, between, back = link_bytes(moved, 3 * 2304).values()
    assert first == {"head": 28, "lengths": 24, "cache operations": 23, "tokens": 20, "ZeroMQ": 4, "encryption": 66}
    assert sum(first[kind] for kind in ("lengths", "cache operations", "tokens")) == len(moved)
    assert between == first | {"activations": 6912, "ZeroMQ": 13, "encryption": 99}
    assert back == {"head": 28, "activations": 6912, "ZeroMQ": 11, "encryption": 66}


def test_the_table_has_means_over_steps() -> None:
    found = {"plain": [(frame(1), 2304)], "drafted": [(frame(3), 3 * 2304), (frame(5), 5 * 2304)]}
    told = lines(found)
    assert told[3] == "| plain, 1.0 nodes | between two stages | 28 | 24 | 0 | 8 | 2,304 | 13 | 99 | 2,476 |"
    assert told[-1] == "| drafted, 4.0 nodes | back to the last stage | 28 | 0 | 0 | 0 | 9,216 | 11 | 66 | 9,321 |"
