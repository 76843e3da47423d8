"""Moving KV rows on a device: the package's commit graph, bound in place to one slot at a time."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.execution.buckets import tree_bucket
from reader_edge_runtime.execution.device_memory import ELEMENT_TYPES, DeviceArray
from reader_edge_runtime.execution.placement import RECORD_PLACEMENT, check_placement
from reader_edge_runtime.execution.provider import load_session, session_options
from reader_edge_runtime.package import Manifest

Int64Array = npt.NDArray[np.int64]


class CommitGraph:
    """Moves rows within a slot, and whole slots, of a slab (2L, slots, H, S, D) that lies on a device."""

    def __init__(self, graph: Path, manifest: Manifest, device: str, provider: str) -> None:
        options = session_options(1)
        options.add_session_config_entry(RECORD_PLACEMENT, "1")
        self._session = load_session(graph, options, provider)
        check_placement(self._session, provider)
        self._manifest = manifest
        self._device = device
        self._write_pos = DeviceArray(device, "int64", (1,))
        self._rows: dict[int, DeviceArray] = {}

    def move_rows(self, slab: DeviceArray, slot: int, rows: Int64Array, start: int) -> None:
        """Copy rows of a slot to `start` and on, in all layers; the ranges may overlap.

        The number of rows is padded with rows that are copied onto themselves, so S must leave room for them.
        """
        num_rows = tree_bucket(len(rows))
        padded = np.arange(start, start + num_rows)
        padded[: len(rows)] = rows
        self._run(slab, slot, slot, padded, start)

    def copy_slot(self, source: DeviceArray, slot: int, target: DeviceArray, target_slot: int) -> None:
        """Copy a slot of one slab to a slot of another: unbound from its past, a scatter copies everything."""
        self._run(source, slot, target_slot, np.zeros(1, np.int64), 0, target)

    def _run(
        self,
        slab: DeviceArray,
        slot: int,
        target_slot: int,
        rows: Int64Array,
        start: int,
        target: DeviceArray | None = None,
    ) -> None:
        binding = self._session.io_binding()
        names = zip(self._manifest.past_names(), self._manifest.present_names(), strict=True)
        for index, (past, present) in enumerate(names):
            bind = (self._device, 0, ELEMENT_TYPES[slab.data_type])
            binding.bind_input(past, *bind, *slot_view(slab, index, slot, 1))
            binding.bind_output(present, *bind, *slot_view(target or slab, index, target_slot, 1))
        self._write_pos.write(np.array([start]))
        binding.bind_ortvalue_input("write_pos", self._write_pos.value)
        binding.bind_ortvalue_input("rows", self._written(rows).value)
        self._session.run_with_iobinding(binding)

    def _written(self, rows: Int64Array) -> DeviceArray:
        if len(rows) not in self._rows:
            self._rows[len(rows)] = DeviceArray(self._device, "int64", rows.shape)
        self._rows[len(rows)].write(rows)
        return self._rows[len(rows)]


def slot_view(slab: DeviceArray, index: int, first_slot: int, num_slots: int) -> tuple[list[int], int]:
    """Shape (B, H, S, D) and address of a range of slots of KV tensor `index`."""
    slot_items = int(np.prod(slab.shape[2:], dtype=np.int64))
    offset = (index * slab.shape[1] + first_slot) * slot_items * slab.item_bytes
    return [num_slots, *slab.shape[2:]], slab.address + offset
