"""The stages of a model in this process, without any link, and checks of their rows."""

import secrets
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError, StageLostError
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.pipeline.following_stage import FollowingStage, UnknownCacheError
from reader_edge_runtime.execution.pipeline.in_flight import FinishedPass, RowsLostError
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from tests.hybrid_states import path_to, random_tree

CLIENT = b"a" * 16


class StagesHere:
    """A `FollowingStages`. lost_at: the numbers of the frames at which the stages forget everything."""

    facts: tuple[str, ...] = ()
    slowest_s = 1e-9

    def __init__(self, stages: Sequence[FollowingStage], lost_at: Collection[int] = ()) -> None:
        self.stages = stages
        self.lost_at = lost_at
        self.frames: list[bytes] = []
        self.most_in_flight = 0
        self._came: deque[FinishedPass] = deque()

    def send(self, frame: bytes) -> int:
        self.frames.append(frame)
        number = len(self.frames)
        if number not in self.lost_at:
            self._came.append(FinishedPass(number, self._answered(frame)))
            self.most_in_flight = max(self.most_in_flight, len(self._came))
        return number

    def receive(self) -> FinishedPass:
        if not self._came:
            raise StageLostError("Stage 1 is gone.")
        return self._came.popleft()

    def _answered(self, frame: bytes) -> memoryview | ProviderError:
        handed: memoryview | None = None
        try:
            for stage in self.stages:
                handed = stage.answer(CLIENT, memoryview(frame), handed).data.cast("B")
        except UnknownCacheError as error:
            return RowsLostError(str(error))
        assert handed is not None
        return handed

    def come_back(self, lost: StageLostError) -> None:
        self._came.clear()
        for stage in self.stages:
            stage.forget(CLIENT)


def open_stages(folder: Path, is_native: bool = True) -> list[HostStage]:
    num_stages = len(ModelPackage.open(folder).addresses) + 1
    return [HostStage.open(ModelPackage.open(folder / str(n)), 1, is_native) for n in range(1, num_stages + 1)]


def pipeline_here(folder: Path, is_native: bool = True, lost_at: Collection[int] = ()) -> PipelineTarget:
    *first, last = open_stages(folder, is_native)
    return PipelineTarget(last, StagesHere(list(map(FollowingStage, first)), lost_at))


def stages_of(target: PipelineTarget) -> StagesHere:
    assert isinstance(target.in_flight.following, StagesHere)
    return target.in_flight.following


def assert_same_rows(whole: Target, piped: Target, num_passes: int, seed: int = 0) -> None:
    """Random trees over ragged batches, paths accepted, slots swapped and copied, caches that grow."""
    rng = np.random.default_rng(seed)
    targets, caches = (whole, piped), (whole.new_cache(1, 16), piped.new_cache(1, 16))
    for cache in caches:
        cache.reserve(3, 16)
    for number in range(num_passes):
        first = int(rng.integers(3))
        trees = [random_tree(rng, int(rng.integers(1, 18)), whole.manifest.vocab_size) for _ in range(first, 3)]
        wanted = Pass(first, trees, [range(len(tree)) for tree in trees], wants_logits=True)
        expected, found = (target.forward(cache, wanted) for target, cache in zip(targets, caches, strict=True))
        for b, tree in enumerate(trees):
            rows = slice(len(tree))
            assert found.wanted_logits[b, rows].tobytes() == expected.wanted_logits[b, rows].tobytes(), (number, b)
            assert found.top_ids[b, rows].tolist() == expected.top_ids[b, rows].tolist()
        paths = [path_to(tree, int(rng.integers(len(tree)))) for tree in trees]
        slot, other, length = map(int, rng.integers([3, 3, 9]))
        for cache in caches:
            for slot_of_path, path in enumerate(paths, first):
                cache.commit(slot_of_path, path)
            cache.swap(slot, other)
            if slot != other:
                cache.copy(slot, other, length)
            if number == num_passes // 2:
                cache.reserve_addresses(4)
                cache.trim(slot)
            for each in range(3):
                cache.cut(each, 60)


def two_passes(tree: DraftTree, num_first: int, slot: int = 0) -> tuple[Pass, Pass]:
    """Over the first nodes of a tree, and over the others behind it."""
    first = Pass(slot, [tree.of_nodes(range(num_first))], [range(num_first)], wants_logits=True)
    second = Pass(slot, [tree], [range(num_first, len(tree))], wants_logits=True, num_before=num_first)
    return first, second


def free_address() -> str:
    """Below the ports that the system lends to connections: one of those may be taken while a stage starts again."""
    for _ in range(100):
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                found.bind(("127.0.0.1", port))
                return f"tcp://127.0.0.1:{port}"
    raise AssertionError("no port is free")


@contextmanager
def stage_process(folder: Path, address: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A stage that is served by the command."""
    command = [sys.executable, "-m", "reader_edge", "stage", str(folder), "--listen", address, "--threads", "1"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "listens at" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.communicate()
