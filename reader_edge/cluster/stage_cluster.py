"""The stages of a pipeline but the last, on nodes of a Ray cluster that have the memory, served until interrupted."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from reader_edge.cluster.connection import connect, words_of
from reader_edge.cluster.placed_stage import PlacedStage
from reader_edge.terminal.sizes import readable_size
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.errors import ClusterError, PackageError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import write_pipeline

_PROCESS_BYTES = 256 << 20  # of a stage beside its files: libraries, cache, passes
_PLACED_S = 30.0
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
        sizes = [_needed_bytes(self._folder / str(number)) for number in range(1, num_stages)]
        connect(address)
        try:
            self.stages = _placed(self._folder, sizes, config)
            self.addresses: list[str] = ray.get([stage.address.remote() for stage in self.stages])
        except RayError as error:
            ray.shutdown()
            raise ClusterError(
                f"A node of the Ray cluster serves no stage ({words_of(error)}): install 'reader-edge[pipeline,ray]'."
            ) from error
        except ClusterError:
            ray.shutdown()
            raise
        write_pipeline(self._folder, self.addresses)

    def __enter__(self) -> "StageCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ray.shutdown()

    def serve(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Have all of them served, and hand on what they tell. Raises ClusterError for one that cannot be."""
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


def _placed(folder: Path, sizes: list[int], config: EngineConfig) -> list[Any]:
    """An actor for each stage, on nodes that have the memory; of their own as far as there are as many."""
    group = placement_group([{"memory": size} for size in sizes], strategy="SPREAD")
    try:
        ray.get(group.ready(), timeout=_PLACED_S)
    except GetTimeoutError:
        rooms = [node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]]
        raise ClusterError(
            f"The Ray cluster has no room for stages of {_sizes(sizes)}: its nodes have {_sizes(rooms)}, of which some "
            "may be in use. Add nodes, or split the model into more stages."
        ) from None
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
