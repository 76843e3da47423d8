"""Packages with MLIR on a device of IREE: passes go there with what they see of the past, and come back.

Numbers of visible KV rows are fixed there: compilers refuse free ones, or compute wrong.
"""

from collections.abc import Callable, Mapping

import numpy as np

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.execution.inputs import Inputs, padded
from reader_edge_runtime.execution.iree.iree_device import IreeDevice, IreeModule
from reader_edge_runtime.execution.iree.iree_runner import run_module
from reader_edge_runtime.execution.iree.module_index import DEVICE_WIDTHS, LEAST_VISIBLE, ModuleIndex
from reader_edge_runtime.execution.iree.wheel import runtime_version
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvArray
from reader_edge_runtime.execution.rows.rows_runner import RowsResult
from reader_edge_runtime.package.manifest import Manifest


class DeviceRunner:
    """A `RowsRunner` whose passes are padded in nodes and in visible rows, each to a power of two."""

    def __init__(
        self,
        manifest: Manifest,
        index: ModuleIndex,
        device: IreeDevice,
        module: Callable[[int, int], IreeModule],
        widths: tuple[int, ...] = DEVICE_WIDTHS,
        least_visible: int = LEAST_VISIBLE,
    ) -> None:
        """module: for a width and a number of visible rows."""
        self.manifest = manifest
        self.provider = f"IREE ({device.name})"
        self.pass_sizes = widths
        self.pass_facts: tuple[str, ...] = str(runtime_version()), device.name, device.description
        self._index = index
        self._module = module
        self._least_visible = least_visible

    def width_for(self, num_nodes: int) -> int:
        return next((width for width in self.pass_sizes if width >= num_nodes), self.pass_sizes[-1])

    def bound(self, past: Mapping[str, KvArray]) -> Mapping[str, KvArray]:
        return past

    def run(self, inputs: Inputs, bound: Mapping[str, KvArray]) -> RowsResult:
        """Raises InstallationError too, where a module is missed that cannot be compiled here."""
        width, num_seen = inputs["tree_mask"].shape[2:]
        num_visible = max(self._least_visible, 1 << (num_seen - 1).bit_length())
        module = self._module(width, num_visible)
        given = {name: _longer(rows, num_seen, num_visible) for name, rows in bound.items()}
        for name, array in inputs.items():
            is_mask = name.startswith("tree_mask")
            given[name] = padded(name, array, (*array.shape[:3], num_visible)) if is_mask else array
        return run_module(module, self._index, self.manifest, given, width)


def _longer(rows: KvArray, num_seen: int, num_visible: int) -> Array:
    """The rows that a pass sees, with zeros behind them: masked rows must be finite."""
    found = np.zeros((*rows.shape[:2], num_visible, rows.shape[3]), rows.dtype)
    found[:, :, :num_seen] = rows[:, :, :num_seen]
    return found
