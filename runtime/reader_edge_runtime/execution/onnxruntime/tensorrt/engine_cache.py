"""A KV cache on a device whose capacities are few, since each needs an engine of its own."""

from collections.abc import Sequence

from reader_edge_runtime.execution.onnxruntime.device.device_cache import CommitGraph, DeviceCache
from reader_edge_runtime.package.manifest import Manifest

_LEAST_CAPACITY = 256


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
