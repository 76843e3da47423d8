"""Runs packages of portable attention by WebGPU: the KV cache stays in host memory, passes copy what they see of it.

WebGPU's buffers have no address, so that a cache there could not be moved as others are: it stays in the host's memory,
which laptops' GPUs share. A pass copies what it sees of the past: of a model with few heads of keys, some percent of
what its weights take to read.
"""

from collections.abc import Mapping

import numpy as np

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.onnxruntime.device.buckets import MAX_CAPTURED, TREE_SIZES, tree_bucket
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvArray
from reader_edge_runtime.execution.onnxruntime.session import (
    RowsSession,
    check_placement,
    load_on_devices,
    session_options,
)
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort
from reader_edge_runtime.execution.provider import Provider
from reader_edge_runtime.execution.rows.rows_target import RowsResult, RowsTarget
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_webgpu.plugin import WEBGPU, devices, has_plugin, plugin_version, webgpu_obstacle

# What computes sizes, positions and places of rows, some dozens of integers: ONNX Runtime leaves it to the CPU.
_OF_POSITIONS = ("Add", "Cast", "Div", "Gather", "Range")
SIZES = frozenset((*_OF_POSITIONS, "Concat", "Expand", "Reshape", "Shape", "Slice", "Squeeze", "Unsqueeze"))


class WebGpuRowsRunner:
    """A `RowsRunner` of few widths, since each is compiled when it comes first."""

    pass_sizes: tuple[int, ...] = TREE_SIZES

    def __init__(self, package: ModelPackage, threads: int = 0) -> None:
        """Raises ProviderError, also where the GPU does not run the graph."""
        self.manifest = package.manifest
        session = load_on_devices(package.path(GRAPH_NAME), session_options(threads), devices()[:1], WEBGPU)
        check_placement(session, WEBGPU, SIZES)
        self._session = RowsSession(session, self.manifest)
        self.provider = self._session.provider
        self.pass_facts: tuple[str, ...] = INSTALLED_WHEEL, plugin_version()

    def width_for(self, num_nodes: int) -> int:
        return min(tree_bucket(num_nodes), MAX_CAPTURED)

    def bound(self, past: Mapping[str, KvArray]) -> Mapping[str, KvArray]:
        return past

    def run(self, inputs: Inputs, bound: Mapping[str, KvArray]) -> RowsResult:
        num_visible = inputs["tree_mask"].shape[-1]
        seen = {name: np.ascontiguousarray(rows[:, :, :num_visible]) for name, rows in bound.items()}
        return self._session.run(inputs, {name: ort.OrtValue.ortvalue_from_numpy(rows) for name, rows in seen.items()})


def suits_webgpu(package: ModelPackage) -> bool:
    """Whether a package is made for WebGPU."""
    return package.manifest.attention == "portable" and package.manifest.precision in ("fp32", "fp16")


def open_webgpu(package: ModelPackage, threads: int = 0) -> RowsTarget:
    """Raises ProviderError for a package of another attention or precision, too."""
    if not suits_webgpu(package):
        raise ProviderError(
            f"'{package.folder}' has {package.manifest.attention} attention in {package.manifest.precision}, which "
            "WebGPU does not run: export it with --precision fp16 --attention portable, or use --provider cpu."
        )
    return RowsTarget(WebGpuRowsRunner(package, threads))


PROVIDER = Provider(
    obstacle=webgpu_obstacle,
    suits=suits_webgpu,
    open=lambda package, threads, uses_native: open_webgpu(package, threads),
    is_installed=has_plugin,
)
