"""The target model on TensorRT: a GPU target with one engine for each capacity that its KV caches grow to."""

from collections.abc import Callable, Sequence
from functools import partial

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.device.buckets import padding_rows
from reader_edge_runtime.execution.onnxruntime.device.device_cache import (
    LEAST_CAPACITY,
    CommitGraph,
    DeviceArray,
    DeviceCache,
)
from reader_edge_runtime.execution.onnxruntime.device.device_target import DeviceTarget, check_made_for_devices
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_contract
from reader_edge_runtime.execution.onnxruntime.session import CUDA
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.execution.provider import Provider
from reader_edge_runtime.package.manifest import COMMIT_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_tensorrt.engine import open_engine
from reader_edge_tensorrt.libraries import has_tensorrt, installed_tensorrt, tensorrt_obstacle

_LEAST_CAPACITY = 256
_LEAST_SLOTS = 8  # which every engine allows, so that few batches need another one

OpenEngine = Callable[[int, int], ort.InferenceSession]  # of slots, and rows of each


class EngineShelf:
    """The engine of the cache in use, shared by a target and its siblings: one holds all weights, so there is one.

    version: of what builds them.
    """

    def __init__(self, manifest: Manifest, version: str, open_one: OpenEngine) -> None:
        self.version = version
        self._manifest = manifest
        self._open = open_one
        self._sizes = (0, 0)
        self._session: ort.InferenceSession | None = None

    def engine(self, num_slots: int, num_rows: int) -> ort.InferenceSession:
        """For passes over a cache of such memory. Raises ProviderError."""
        sizes = max(num_slots, _LEAST_SLOTS), num_rows
        if self._session is None or self._sizes != sizes:
            self._session = None  # before the next one takes as much
            session = self._open(*sizes)
            check_contract(session, self._manifest)
            self._sizes, self._session = sizes, session
        return self._session


class EngineCache(DeviceCache):
    """A `DeviceCache` with a power of two of rows a slot, or all of the model's context."""

    def __init__(
        self, manifest: Manifest, num_slots: int, capacity: int, device: str, commit_graph: CommitGraph
    ) -> None:
        super().__init__(manifest, num_slots, engine_capacity(capacity), device, commit_graph)

    def num_bytes_of(self, lengths: Sequence[int], capacity: int) -> int:
        return super().num_bytes_of(lengths, self._rounded(capacity))

    def resize(self, num_slots: int, capacity: int) -> None:
        super().resize(num_slots, self._rounded(capacity))

    def _rounded(self, capacity: int) -> int:
        return min(engine_capacity(capacity), self._manifest.max_context)


def engine_capacity(capacity: int) -> int:
    """The least capacity of engines that holds so many rows."""
    return max(_LEAST_CAPACITY, 1 << (capacity - 1).bit_length())


class TensorRtTarget(DeviceTarget):
    """A `DeviceTarget` whose passes are not captured, which has not been tried with an engine.

    Memory, and what moves rows in it, are those of the CUDA provider.
    """

    is_captured = False

    def __init__(
        self, shelf: EngineShelf, manifest: Manifest, device: str, commit_graph: CommitGraph, min_rows: int = 1
    ) -> None:
        num_rows = padding_rows(min(LEAST_CAPACITY, manifest.max_context))
        super().__init__(shelf.engine(1, num_rows), manifest, device, commit_graph, min_rows)
        self.pass_facts += (shelf.version,)
        self._shelf = shelf

    @classmethod
    def open(cls, package: ModelPackage, threads: int = 0) -> "TensorRtTarget":
        """Build or load the engine of the least capacity. Raises ProviderError."""
        check_made_for_devices(package)
        if package.manifest.attention != "fast":
            raise ProviderError(
                f"'{package.folder}' has {package.manifest.attention} attention, which sums in float64, and TensorRT "
                "would sum in float32: export it with --attention fast, or use --provider cuda."
            )
        tensorrt = installed_tensorrt()
        shelf = EngineShelf(package.manifest, tensorrt.version, partial(open_engine, package, tensorrt, threads))
        return cls(shelf, package.manifest, "cuda", CommitGraph(package.path(COMMIT_NAME), "cuda", CUDA))

    def with_min_rows(self, min_rows: int) -> "TensorRtTarget":
        return TensorRtTarget(self._shelf, self.manifest, self.device, self._commit_graph, min_rows)

    def new_cache(self, num_slots: int, capacity: int) -> DeviceCache:
        return EngineCache(self.manifest, num_slots, capacity, self.device, self._commit_graph)

    def _session_for(self, memory: DeviceArray) -> ort.InferenceSession:
        _, num_slots, _, num_rows, _ = memory.shape
        self.session = self._shelf.engine(num_slots, num_rows)
        return self.session


PROVIDER = Provider(
    obstacle=tensorrt_obstacle,
    suits=lambda package: COMMIT_NAME in package.manifest.files and package.manifest.attention == "fast",
    open=lambda package, threads, uses_native: TensorRtTarget.open(package, threads),
    is_installed=has_tensorrt,
)
