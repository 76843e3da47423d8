"""Runs a forecasting model: passes over patches of several series and sample paths at once."""

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_graph import CacheBindings
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session, run_bound
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.package.manifest import MASKED
from reader_edge_runtime.package.model_package import PackageFiles
from reader_edge_series.series_manifest import SIZES_PROPERTY, PatchSizes


class PatchTarget(Protocol):
    """The counterpart of `reader_edge_runtime.target.Target` for patches, whose rows are Gaussians."""

    sizes: PatchSizes

    def new_cache(self, num_slots: int, capacity: int) -> Cache:
        """An empty cache. Raises ConfigError where memory is short."""
        ...

    def forward(
        self, cache: Cache, first_slot: int, patches: Float32Array, rows: Int64Array | Sequence[Sequence[int]]
    ) -> Float32Array:
        """Score chains of patches (B, N, P), each behind the committed ones of slot first_slot + b.

        Their rows of the cache are written and not committed. rows: int64 (B, R), the nodes to report on. Returns
        their parameters (B, R, G * P), which are yours. Raises ProviderError.
        """
        ...


class HostPatches:
    """A `PatchTarget` on ONNX Runtime's CPU provider."""

    def __init__(self, session: ort.InferenceSession, sizes: PatchSizes) -> None:
        self.sizes = sizes
        self._session = session
        self._bindings = CacheBindings(session)

    @classmethod
    def open(cls, package: PackageFiles, name: str, sizes: PatchSizes, threads: int = 0) -> "HostPatches":
        """One of a package's graphs. Raises ProviderError or InstallationError."""
        path = package.path(name)
        session = open_session(path, threads, native_library())
        inputs = {each.name: each.shape for each in session.get_inputs()}
        outputs = {each.name: each.shape for each in session.get_outputs()}
        kept = [f"{kind}.{layer}" for layer in range(sizes.num_layers) for kind in ("key", "value")]
        given = {"patches", "position_ids", "tree_mask", "write_pos", "logit_rows", *(f"past_{each}" for each in kept)}
        is_fit = inputs.keys() == given and outputs.keys() == {"parameters", *(f"present_{each}" for each in kept)}
        if is_fit:
            row = sizes.num_kv_heads, sizes.head_dim
            is_fit = all((inputs[f"past_{each}"][1], inputs[f"past_{each}"][3]) == row for each in kept)
            is_fit = is_fit and inputs["patches"][2:] == [sizes.patch_size]
            is_fit = is_fit and outputs["parameters"][2:] == [sizes.num_outputs]
            stored = session.get_modelmeta().custom_metadata_map.get(SIZES_PROPERTY)
            is_fit = is_fit and stored == sizes.to_json()
        if not is_fit:
            raise ProviderError(f"The graph '{path}' is not what its manifest says: export the model again.")
        return cls(session, sizes)

    def new_cache(self, num_slots: int, capacity: int) -> HostCache:
        return HostCache(self.sizes, num_slots, capacity)

    def forward(
        self, cache: Cache, first_slot: int, patches: Float32Array, rows: Int64Array | Sequence[Sequence[int]]
    ) -> Float32Array:
        num_chains, num_nodes, _ = patches.shape
        cache.extend(first_slot, num_chains, num_nodes)
        lengths = np.array(cache.lengths[first_slot : first_slot + num_chains])
        positions = lengths[:, None] + np.arange(num_nodes)
        behind = positions[:, None, :, None] - np.arange(positions.max() + 1)
        is_hidden = (behind < 0) | (behind >= self.sizes.window)
        rows = np.asarray(rows, np.int64)
        parameters: Float32Array = np.empty((*rows.shape, self.sizes.num_outputs), np.float32)
        binding = self._bindings.of(cast(HostCache, cache), first_slot, num_chains)
        binding.bind_cpu_input("patches", np.ascontiguousarray(patches))
        binding.bind_cpu_input("position_ids", positions)
        binding.bind_cpu_input("tree_mask", np.where(is_hidden, np.float32(MASKED), np.float32(0)))
        binding.bind_cpu_input("write_pos", lengths)
        binding.bind_cpu_input("logit_rows", rows)
        binding.bind_ortvalue_output("parameters", ort.OrtValue.ortvalue_from_numpy(parameters))
        run_bound(self._session, binding)
        if not np.isfinite(parameters).all():
            raise ProviderError("The forecasting model gives values that are no numbers: export or train it again.")
        return parameters
