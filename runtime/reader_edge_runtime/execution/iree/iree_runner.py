"""Packages with MLIR on IREE: the `RowsRunner` over modules of several widths."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.iree.iree_device import IreeDevice, IreeModule
from reader_edge_runtime.execution.iree.module_files import WIDTHS, ModuleIndex
from reader_edge_runtime.execution.iree.wheel import runtime_version
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvArray
from reader_edge_runtime.execution.rows.rows_target import RowsResult
from reader_edge_runtime.package.manifest import Manifest

Modules = Mapping[int, IreeModule]  # by the width of their passes


class IreeRunner:
    """Passes are padded to the width of a module, which reports on as many rows.

    modules: those that there are, one at least. missed: called with each width that a pass would
    have had and that is not there; it may add it.
    """

    pass_sizes: tuple[int, ...] = ()

    def __init__(
        self,
        manifest: Manifest,
        index: ModuleIndex,
        device: IreeDevice,
        modules: Modules,
        missed: Callable[[int], None] = lambda width: None,
    ) -> None:
        self.manifest = manifest
        self.provider = "IREE (local)"
        self.pass_facts: tuple[str, ...] = str(runtime_version()), "local", ",".join(map(str, sorted(modules)))
        self._index = index
        self._device = device
        self._modules = modules
        self._missed = missed

    def width_for(self, num_nodes: int) -> int:
        fitting = next((width for width in WIDTHS if width >= num_nodes), WIDTHS[-1])
        if fitting not in self._modules:
            self._missed(fitting)
        return min((width for width in self._modules if width >= num_nodes), default=max(self._modules))

    def bound(self, past: Mapping[str, KvArray]) -> dict[str, Any]:
        return {name: self._device.imported(array) for name, array in past.items()}

    def run(self, inputs: Inputs, bound: dict[str, Any]) -> RowsResult:
        """A pass of a module that reports on as many rows as it has nodes."""
        width, wanted = inputs["input_ids"].shape[1], inputs["logit_rows"]
        rows = np.zeros((1, width), np.int32)
        rows[:, : wanted.shape[1]] = wanted
        given = {**inputs, **bound, "logit_rows": rows}
        made = self._modules[width].call([given[name] for name in self._index.inputs], len(self._index.outputs))
        results = {name: _checked(name, array, width) for name, array in zip(self._index.outputs, made, strict=True)}
        names = zip(self.manifest.past_names(), self.manifest.present_names(), strict=True)
        return RowsResult(results["logits"], results.get("hidden_states"), {past: results[new] for past, new in names})


def _checked(name: str, array: Float32Array, width: int) -> Float32Array:
    """A result without the axis of sequences. Raises ProviderError where it has another form than the graph's."""
    if array.ndim < 3 or array.shape[0] != 1 or array.shape[-2] != width:
        raise ProviderError(f"The module of {width} gives {name} as {array.shape!s:.40}: export the model again.")
    found: Float32Array = array[0]
    return found
