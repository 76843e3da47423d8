"""A part of a package's graph on the CPU: some layers, which take values from the part before and hand on others."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from reader_edge_runtime.execution.inputs import prepare_inputs
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session, run_bound
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.process_memory import FilePages, large_blocks_apart
from reader_edge_runtime.target import Pass

Values = Mapping[str, npt.NDArray[Any]]  # by name, as a graph has them


class HostPart:
    """Passes have the bits that they have in `HostTarget`. Its caches hold its own layers alone."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest, weights: FilePages) -> None:
        self._session = session
        self._weights = weights
        self._inputs = {node.name for node in session.get_inputs()}
        names = zip(manifest.past_names(), manifest.present_names(), strict=True)
        self._kv_names = [(past, present) for past, present in names if past in self._inputs]
        kept = {present for _, present in self._kv_names}
        self._outputs = [node.name for node in session.get_outputs() if node.name not in kept]
        self._manifest = replace(manifest, num_layers=len(self._kv_names) // 2)

    @classmethod
    def open(cls, graph: bytes, weights: Path, manifest: Manifest) -> "HostPart":
        """Run with native kernels where they are installed.

        graph: the part as an ONNX file has it. weights: the file that it refers to. manifest: the package's.
        Raises ProviderError or InstallationError.
        """
        with large_blocks_apart():
            session = open_session(graph, 0, native_library(), weights_folder=weights.parent)
            return cls(session, manifest, FilePages(weights))

    def new_cache(self, num_slots: int, capacity: int) -> HostCache:
        return HostCache(self._manifest, num_slots, capacity)

    def forward(self, cache: HostCache, wanted: Pass, handed: Values) -> Values:
        """What this part makes of a pass and of values handed on to it. Raises ProviderError."""
        inputs = {**prepare_inputs(cache, wanted, self._manifest, 1), **handed}
        binding = self._session.io_binding()
        for name in self._inputs & inputs.keys():
            binding.bind_cpu_input(name, np.ascontiguousarray(inputs[name]))
        for index, (past, present) in enumerate(self._kv_names):
            rows = ort.OrtValue.ortvalue_from_numpy(cache.layer_view(index, wanted.first_slot, len(wanted.trees)))
            binding.bind_ortvalue_input(past, rows)
            binding.bind_ortvalue_output(present, rows)
        for name in self._outputs:
            binding.bind_output(name)
        run_bound(self._session, binding)
        self._weights.forget()
        made = binding.get_outputs()[len(self._kv_names) :]
        return {name: value.numpy() for name, value in zip(self._outputs, made, strict=True)}
