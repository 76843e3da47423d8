"""What a pass through stages consists of: of one node, over loopback, beside one box."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reader_edge_runtime import EngineConfig
from reader_edge_runtime.assembly import open_package
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.target import Pass, Target

_PAST = 64
_NUM_PASSES = 200


@dataclass(frozen=True, slots=True)
class PassParts:
    """Milliseconds, medians of passes that take turns; bytes of a link for one node and for each node more.

    frame_bytes: what tells of tokens and the cache. stream_bytes: the residual stream of one node.
    """

    num_stages: int
    one_box_ms: float
    stages_ms: float
    ring_ms: float
    frame_bytes: int
    stream_bytes: int


def pass_parts(package: Path, folder: Path, threads: int) -> PassParts:
    """folder: of a pipeline of that package, whose stages are served on this machine."""
    config = EngineConfig(threads=threads)
    whole, ring = (open_target(open_package(path), config) for path in (package, folder))
    num_stages = len(open_package(folder).addresses) + 1
    alone = [HostStage.open(open_package(folder / str(number + 1)), threads) for number in range(num_stages)]
    wanted = Pass(0, [DraftTree.root(5)], [range(1)])
    timed = [_passes(whole, wanted), _passes(ring, wanted)]
    times = [[each() for each in timed] for _ in range(_NUM_PASSES)]
    one_box_s, ring_s = (statistics.median(column) for column in zip(*times, strict=True))
    stages_s = sum(stage.pass_seconds() for stage in alone)
    frame = PassFrame(1, [], [_PAST], wanted, 1).packed()
    return PassParts(num_stages, 1000 * one_box_s, 1000 * stages_s, 1000 * ring_s, len(frame), 4 * alone[0].part.width)


def _passes(target: Target, wanted: Pass) -> Callable[[], float]:
    cache = target.new_cache(1, _PAST + 1)
    cache.fill(0, _PAST)

    def seconds() -> float:
        started = time.perf_counter()
        target.forward(cache, wanted)
        return time.perf_counter() - started

    return seconds
