"""Splits the time of a one-node pass through stages over loopback into its parts, beside a pass in one box."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from reader_edge_runtime import EngineConfig
from reader_edge_runtime.assembly import open_package
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.target import Pass, Target

_PAST = 64
_NUM_TURNS, _NUM_IN_TURN = 10, 20  # passes that follow each other, as in an answer
_REST_S = 0.01  # as long as boxes wait for slow links: caches and cores have gone cold


@dataclass(frozen=True, slots=True)
class PassParts:
    """Milliseconds, medians of passes; bytes of a link for one node and for each node more.

    stages_ms: of the graphs alone. ring_ms, rested_ms: of whole passes over loopback, one after the other, and with a
    rest before each. frame_bytes: what tells of tokens and the cache. stream_bytes: the residual stream of one node.
    """

    num_stages: int
    one_box_ms: float
    stages_ms: float
    ring_ms: float
    rested_ms: float
    frame_bytes: int
    stream_bytes: int

    def expected_ms(self, latency_ms: float) -> float:
        """A pass over links of that latency one way: what it takes over loopback, and the links."""
        return (self.rested_ms if latency_ms else self.ring_ms) + self.num_stages * latency_ms


def pass_parts(package: Path, folder: Path, threads: int) -> PassParts:
    """folder: of a pipeline of that package, whose stages are served on this machine."""
    config = EngineConfig(threads=threads)
    whole, ring = (open_target(open_package(path), config) for path in (package, folder))
    num_stages = len(open_package(folder).addresses) + 1
    alone = [HostStage.open(open_package(folder / str(number + 1)), threads) for number in range(num_stages)]
    wanted = Pass(0, [DraftTree.root(5)], [range(1)])
    timed = [_passes(whole, wanted), _passes(ring, wanted), _passes(ring, wanted, _REST_S)]
    turns = [[[each() for _ in range(_NUM_IN_TURN)] for each in timed] for _ in range(_NUM_TURNS)]
    one_box_ms, ring_ms, rested_ms = (
        1000 * statistics.median(chain.from_iterable(each)) for each in zip(*turns, strict=True)
    )
    stages_ms = 1000 * sum(stage.pass_seconds() for stage in alone)
    frame = PassFrame(1, [], [_PAST], wanted, 1).packed()
    return PassParts(num_stages, one_box_ms, stages_ms, ring_ms, rested_ms, len(frame), 4 * alone[0].part.width)


def _passes(target: Target, wanted: Pass, rest_s: float = 0.0) -> Callable[[], float]:
    cache = target.new_cache(1, _PAST + 1)
    cache.fill(0, _PAST)

    def seconds() -> float:
        if rest_s:
            time.sleep(rest_s)
        started = time.perf_counter()
        target.forward(cache, wanted)
        return time.perf_counter() - started

    return seconds
