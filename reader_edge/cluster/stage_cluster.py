"""The stages of a pipeline but the last, on nodes of a Ray cluster that have the memory, served until interrupted."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from filelock import FileLock, Timeout
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from reader_edge.cluster.connection import connect, words_of
from reader_edge.cluster.placed_stage import PlacedStage
from reader_edge.terminal.sizes import readable_size
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.errors import ClusterError, PackageError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import PIPELINE_NAME, write_pipeline

_PROCESS_BYTES = 256 << 20  # of a stage beside its files: libraries, cache, passes
_PLACED_S = 30.0
_MOVED_S = 5.0  # in which stages of a lost node are placed again, where there is room
_POLL_S = 0.5
_NUM_CALLS = 3  # of an actor at once: serve, next_line, address


class StageCluster:
    """addresses: of the stages, in turn, which pipeline.json has, too. tell: gets lines of what happens."""

    def __init__(self, folder: Path, address: str, config: EngineConfig, tell: Callable[[str], None]) -> None:
        """Place them. folder: of a pipeline, at the same path on all nodes. address: HOST:PORT of the cluster.

        Raises PackageError or ClusterError.
        """
        self._folder = folder.resolve()
        self._tell = tell
        num_stages = len(ModelPackage.open(folder).addresses) + 1
        if num_stages == 1:
            raise PackageError(f"'{folder}' is no pipeline: give the folder that `reader-edge split` wrote.")
        self._sizes = [_needed_bytes(self._folder / str(number)) for number in range(1, num_stages)]
        self._lock = _locked(self._folder)
        try:
            self._place(address, config)
        except BaseException:
            self._end()
            raise
        self._lost_at_s: float | None = None
        self._is_told = False

    def _place(self, address: str, config: EngineConfig) -> None:
        connect(address)
        try:
            self._group = _group(self._sizes)
            self.stages = _placed(self._group, self._folder, self._sizes, config)
            self.addresses: list[str] = ray.get([stage.address.remote() for stage in self.stages])
        except RayError as error:
            raise ClusterError(
                f"A node of the Ray cluster serves no stage ({words_of(error)}): install 'reader-edge[pipeline,ray]'."
            ) from error
        write_pipeline(self._folder, self.addresses)

    def _end(self) -> None:
        ray.shutdown()
        self._lock.release()

    def __enter__(self) -> "StageCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def serve(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Have all of them served, and hand on what they tell. Raises ClusterError for one that cannot be."""
        try:
            self._serve(is_stopped)
        except RayError as error:
            raise ClusterError(
                f"The Ray cluster serves the stages no more ({words_of(error)}): see to it, and start this again."
            ) from error

    def _serve(self, is_stopped: Callable[[], bool]) -> None:
        serving = {self._served(index): index for index in range(len(self.stages))}
        telling = {stage.next_line.remote(): stage for stage in self.stages}
        while not is_stopped():
            for done in ray.wait([*serving, *telling], timeout=_POLL_S)[0]:
                if done in telling:
                    stage = telling.pop(done)
                    self._tell(ray.get(done))
                    telling[stage.next_line.remote()] = stage
                else:
                    index = serving.pop(done)
                    self._settle(index, done)
                    serving[self._served(index)] = index
            self._tell_without_room()

    def _served(self, index: int) -> Any:
        return self.stages[index].serve.remote(self.addresses[index])

    def _settle(self, index: int, served: Any) -> None:
        """Note where a stage is that ended. Raises ClusterError unless it was moved to another node."""
        try:
            ray.get(served)
        except RayError as error:
            place = ray.get(self.stages[index].address.remote())
            if _host(place) == _host(self.addresses[index]):
                raise ClusterError(
                    f"Stage {index + 1} cannot be served at {self.addresses[index]}: {words_of(error)}."
                ) from error
            self.addresses[index] = place
            write_pipeline(self._folder, self.addresses)

    def _tell_without_room(self) -> None:
        """Once for each loss of nodes, where none that is left has the memory: Ray waits for one that has."""
        if placement_group_table(self._group)["state"] == "CREATED":
            self._lost_at_s, self._is_told = None, False
        elif self._lost_at_s is None:
            self._lost_at_s = time.monotonic()
        elif not self._is_told and time.monotonic() - self._lost_at_s > _MOVED_S:
            self._is_told = True
            self._tell(f"A node is lost. {_no_room(self._sizes)} Add a node: lost stages go there.")


def _locked(folder: Path) -> FileLock:
    """Keep a pipeline for this process, whose addresses its pipeline.json has. Raises ClusterError."""
    lock = FileLock(folder / f"{PIPELINE_NAME}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ClusterError(
            f"Another `reader-edge stage --ray` serves '{folder}': end it first, or give a copy of the folder."
        ) from None
    return lock


def _group(sizes: list[int]) -> PlacementGroup:
    """Room for each stage, on nodes of their own as far as there are as many. Raises ClusterError."""
    group = placement_group([{"memory": size} for size in sizes], strategy="SPREAD")
    try:
        ray.get(group.ready(), timeout=_PLACED_S)
    except GetTimeoutError:
        raise ClusterError(f"{_no_room(sizes)} Add nodes, or split the model into more stages.") from None
    return group


def _no_room(sizes: list[int]) -> str:
    rooms = [node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]]
    return (
        f"The Ray cluster has no room for stages of {_sizes(sizes)}: its nodes have {_sizes(rooms)}, of which some may "
        "be in use."
    )


def _placed(group: PlacementGroup, folder: Path, sizes: list[int], config: EngineConfig) -> list[Any]:
    """An actor for each stage, where there is room for it."""
    made = ray.remote(PlacedStage)
    return [
        made.options(
            num_cpus=0,
            memory=size,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=_NUM_CALLS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        ).remote(folder, index + 1, len(sizes) + 1, config)
        for index, size in enumerate(sizes)
    ]


def _needed_bytes(stage: Path) -> int:
    return _PROCESS_BYTES + sum(entry.num_bytes for entry in ModelPackage.open(stage).manifest.files.values())


def _sizes(sizes: list[int]) -> str:
    return ", ".join(readable_size(int(size)) for size in sizes)


def _host(address: str) -> str:
    return address.rpartition(":")[0]
