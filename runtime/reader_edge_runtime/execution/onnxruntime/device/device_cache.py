"""The KV cache on a device: one allocation, moved by the commit graph, grown through the host."""

import numpy as np

from reader_edge_runtime.execution.onnxruntime.device.buckets import padding_rows
from reader_edge_runtime.execution.onnxruntime.device.commit_graph import CommitGraph
from reader_edge_runtime.execution.onnxruntime.device.device_memory import DeviceArray, host_type
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Cache, Int64Array

# Growing moves the cache, and captured passes hold its address: begin with room for most answers.
_LEAST_CAPACITY = 4096


class DeviceCache(Cache):
    """memory: kv_dtype (2L, slots, H, S, D); its S leaves room for padded nodes and is a multiple of 8.

    Another object after growing: bindings and captured passes of the old one are stale.
    """

    def __init__(
        self, manifest: Manifest, num_slots: int, capacity: int, device: str, commit_graph: CommitGraph
    ) -> None:
        super().__init__(manifest, num_slots, max(capacity, _LEAST_CAPACITY))
        self._device = device
        self._commit_graph = commit_graph
        self.memory = self._zeros(num_slots, self.capacity)
        self._spare: DeviceArray | None = None

    @property
    def num_bytes(self) -> int:
        return self.memory.num_bytes

    def _grow(self, num_slots: int, capacity: int) -> None:
        old = self.memory.read()
        self.memory = self._zeros(num_slots, capacity)
        grown = np.zeros(self.memory.shape, old.dtype)
        grown[:, : old.shape[1], :, : old.shape[3]] = old[..., : self.memory.shape[3], :]
        self.memory.write(grown)
        self._spare = None

    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        self._commit_graph.move_rows(self.memory, slot, rows, start)

    def _swap_rows(self, slot: int, other: int, num_rows: int) -> None:
        if self._spare is None:
            self._spare = self._zeros(1, self.capacity)
        self._commit_graph.copy_slot(self.memory, slot, self._spare, 0)
        self._commit_graph.copy_slot(self.memory, other, self.memory, slot)
        self._commit_graph.copy_slot(self._spare, 0, self.memory, other)

    def _zeros(self, num_slots: int, capacity: int) -> DeviceArray:
        manifest = self._manifest
        shape = (2 * manifest.num_layers, num_slots, manifest.num_kv_heads, padding_rows(capacity), manifest.head_dim)
        memory = DeviceArray(self._device, manifest.kv_dtype, shape)
        memory.write(np.zeros(shape, host_type(manifest.kv_dtype)))
        return memory
