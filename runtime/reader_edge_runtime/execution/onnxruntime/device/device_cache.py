"""The KV cache on a device: one allocation, resized through the host, moved by the package's commit graph.

The graph is bound in place to the whole slab, or to one slot's tensors.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reader_edge_runtime.arrays import Array, Int64Array
from reader_edge_runtime.cache import Cache, SlotContents
from reader_edge_runtime.errors import ConfigError, ProviderError
from reader_edge_runtime.execution.onnxruntime.device.buckets import padding_rows, slot_bucket, tree_bucket
from reader_edge_runtime.execution.onnxruntime.session import load_placed, run_bound, run_options, session_options
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.package.manifest import Manifest

ELEMENT_TYPES = {"float32": 1, "int64": 7, "float16": 10, "bfloat16": 16}  # ONNX's numbers


def host_type(data_type: str) -> str:
    """The numpy type that holds an element's bits: numpy has no bfloat16."""
    return "uint16" if data_type == "bfloat16" else data_type


class DeviceArray:
    """A tensor on "cpu" or "cuda"; its address never changes, so that bindings and captured passes hold."""

    def __init__(self, device: str, data_type: str, shape: Sequence[int]) -> None:
        self.device = device
        self.data_type = data_type
        self.shape = tuple(shape)
        self.num_bytes = math.prod(shape) * np.dtype(host_type(data_type)).itemsize
        try:
            self.value = ort.OrtValue.ortvalue_from_shape_and_type(list(shape), ELEMENT_TYPES[data_type], device)
        except Exception as error:  # onnxruntime raises unrelated classes here
            gigabytes = self.num_bytes / 1e9
            raise ConfigError(f"{gigabytes:.1f} GB of memory on {device} cannot be had: lower max_batch.") from error
        self.address = int(self.value.data_ptr())

    def write(self, array: Array) -> None:
        """Copy an array of the same shape here; bfloat16 as its bits in uint16."""
        contiguous = np.ascontiguousarray(array, host_type(self.data_type))
        if contiguous.shape != self.shape:
            raise ValueError(f"an array {contiguous.shape} for a tensor {self.shape}")
        self.value.update_inplace(_as_bfloat16(contiguous) if self.data_type == "bfloat16" else contiguous)

    def read(self) -> Array:
        """A copy in the host's memory; bfloat16 as its bits in uint16."""
        if self.data_type != "bfloat16":
            return np.array(self.value.numpy())
        array = np.empty(self.shape, np.uint16)
        _as_bfloat16(array).update_inplace(self.value)
        return array


def _as_bfloat16(array: Array) -> ort.OrtValue:
    """A view of an array of uint16 as a tensor."""
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, ELEMENT_TYPES["bfloat16"])


# Growing moves the cache, and captured passes hold its address: begin with room for most answers.
LEAST_CAPACITY = 4096

View = tuple[list[int], int]  # shape and address of a part of a slab
BoundMove = tuple[DeviceArray, DeviceArray, ort.IOBinding]  # rows, write_pos, and what binds them


class CommitGraph:
    """Moves rows within a slot, and whole slots, of a slab (2L, slots, H, S, D) that lies on a device."""

    def __init__(self, graph: Path, device: str, provider: str) -> None:
        self._session = load_placed(graph, session_options(1), provider)
        if {node.name for node in self._session.get_inputs()} != {"kv", "rows", "write_pos"}:
            raise ProviderError(f"'{graph}' moves no whole cache, as an earlier version made it: export again.")
        self._device = device
        self._options = run_options()
        self._moves: dict[int, BoundMove] = {}
        self._bound_slab: DeviceArray | None = None

    def move_rows(self, slab: DeviceArray, slot: int, rows: Int64Array, start: int) -> None:
        """Copy rows of a slot to `start` and on, in all layers; the ranges may overlap.

        The number of rows is padded with rows that are copied onto themselves, so S must leave room for them. Other
        slots get theirs behind all that passes may commit, in the rows kept for padding.
        """
        num_rows = tree_bucket(len(rows))
        padded = np.arange(start, start + num_rows)
        padded[: len(rows)] = rows
        num_tensors, num_slots, _, capacity, _ = slab.shape
        write_pos = np.full((num_tensors, num_slots), capacity - num_rows)
        write_pos[:, slot] = start
        bound_rows, bound_write_pos, binding = self._bound_move(slab, num_rows)
        bound_rows.write(padded)
        bound_write_pos.write(write_pos.reshape(-1))
        run_bound(self._session, binding, self._options)

    def copy_slot(self, source: DeviceArray, slot: int, target: DeviceArray, target_slot: int) -> None:
        """Copy a slot of one slab to a slot of another: unbound from its past, a scatter copies everything."""
        first = DeviceArray(self._device, "int64", (1,))
        first.write(np.zeros(1))
        for index in range(source.shape[0]):
            views = slot_view(source, index, slot, 1), slot_view(target, index, target_slot, 1)
            binding = self._bind(source.data_type, *views, first, first)
            run_bound(self._session, binding, self._options)

    def _bound_move(self, slab: DeviceArray, num_rows: int) -> BoundMove:
        """The slab bound in place, kept until it moves."""
        if self._bound_slab is not slab:
            self._moves.clear()
            self._bound_slab = slab
        if num_rows not in self._moves:
            view = [slab.shape[0] * slab.shape[1], *slab.shape[2:]], slab.address
            rows, write_pos = (DeviceArray(self._device, "int64", (size,)) for size in (num_rows, view[0][0]))
            self._moves[num_rows] = rows, write_pos, self._bind(slab.data_type, view, view, rows, write_pos)
        return self._moves[num_rows]

    def _bind(
        self, data_type: str, source: View, target: View, rows: DeviceArray, write_pos: DeviceArray
    ) -> ort.IOBinding:
        binding = self._session.io_binding()
        binding.bind_input("kv", self._device, 0, ELEMENT_TYPES[data_type], *source)
        binding.bind_output("moved", self._device, 0, ELEMENT_TYPES[data_type], *target)
        binding.bind_ortvalue_input("rows", rows.value)
        binding.bind_ortvalue_input("write_pos", write_pos.value)
        return binding


def slot_view(slab: DeviceArray, index: int, first_slot: int, num_slots: int) -> View:
    """Shape (B, H, S, D) and address of a range of slots of KV tensor `index`."""
    num_tensors, num_all_slots, *slot_shape = slab.shape
    slot_bytes = slab.num_bytes // (num_tensors * num_all_slots)
    return [num_slots, *slot_shape], slab.address + (index * num_all_slots + first_slot) * slot_bytes


class DeviceCache(Cache):
    """memory: kv_dtype (2L, slots, H, S, D); its S leaves room for padded nodes and is a multiple of 8, and its slots
    are a power of two, those behind `num_slots` for trees that pad a pass.

    It is dense: every slot takes what the longest needs, and a change of places one slot more.
    Another object after a change of its size: bindings and captured passes of the old one are stale.
    """

    has_host_rows = False
    _manifest: Manifest

    def __init__(
        self, manifest: Manifest, num_slots: int, capacity: int, device: str, commit_graph: CommitGraph
    ) -> None:
        super().__init__(manifest, num_slots, max(capacity, LEAST_CAPACITY))
        self._device = device
        self._commit_graph = commit_graph
        self.memory = self._zeros(num_slots, self.capacity)
        self._spare: DeviceArray | None = None

    @property
    def num_bytes(self) -> int:
        return self.memory.num_bytes + (self._spare.num_bytes if self._spare is not None else 0)

    def num_bytes_of(self, lengths: Sequence[int], capacity: int) -> int:
        num_slots = slot_bucket(len(lengths)) + (len(lengths) > 1)
        return num_slots * padding_rows(capacity) * self._manifest.kv_row_bytes

    def reserve_addresses(self, num_slots: int) -> None:
        """Slots that are not there yet would take memory."""

    def trim(self, slot: int) -> None:
        """Rows of one slot cannot be let go of."""

    def read_slot(self, slot: int, length: int) -> SlotContents:
        return SlotContents(length, (self.memory.read()[:, slot, :, :length],))

    def _write_contents(self, slot: int, contents: SlotContents, start: int) -> None:
        whole = self.memory.read()
        whole[:, slot, :, start : start + contents.length] = contents.rows[0]
        self.memory.write(whole)

    def _resize(self, num_slots: int, capacity: int) -> None:
        old = self.memory.read()
        memory = self._zeros(num_slots, capacity)
        kept = old[:, : min(num_slots, self.num_slots), :, : memory.shape[3]]
        resized = np.zeros(memory.shape, old.dtype)
        resized[:, : kept.shape[1], :, : kept.shape[3]] = kept
        memory.write(resized)
        self.memory, self._spare = memory, None

    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        self._commit_graph.move_rows(self.memory, slot, rows, start)

    def _swap_contents(self, slot: int, other: int) -> None:
        if self._spare is None:
            self._spare = self._zeros(1, self.capacity)
        self._commit_graph.copy_slot(self.memory, slot, self._spare, 0)
        self._commit_graph.copy_slot(self.memory, other, self.memory, slot)
        self._commit_graph.copy_slot(self._spare, 0, self.memory, other)

    def _zeros(self, num_slots: int, capacity: int) -> DeviceArray:
        manifest = self._manifest
        sizes = manifest.num_kv_heads, padding_rows(capacity), manifest.head_dim
        shape = (2 * manifest.num_layers, slot_bucket(num_slots), *sizes)
        memory = DeviceArray(self._device, manifest.kv_dtype, shape)
        memory.write(np.zeros(shape, host_type(manifest.kv_dtype)))
        return memory
