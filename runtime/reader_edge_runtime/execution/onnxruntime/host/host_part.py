"""A part of a package's graph on the CPU: some layers, which take values from the part before and hand on others."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.execution.inputs import prepare_inputs
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache, present_name
from reader_edge_runtime.execution.onnxruntime.host.hybrid_cache import HybridCache
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session, run_bound
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.machine.process_memory import FilePages, large_blocks_apart
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Pass

Values = Mapping[str, npt.NDArray[Any]]  # by name, as a graph has them


class HostPart:
    """Passes have the bits that they have in `HostTarget`. Its caches hold its own layers alone."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest, weights: FilePages) -> None:
        self._session = session
        self._weights = weights
        self._inputs = {node.name for node in session.get_inputs()}
        self._manifest = _manifest_of(manifest, self._inputs)
        kept = {f"{word}_{name}" for name in self._manifest.state_sizes() for word in ("present", "capsule")}
        kept.update(self._manifest.present_names())
        self._outputs = [node.name for node in session.get_outputs() if node.name not in kept]

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
        return (HybridCache if self._manifest.has_states else HostCache)(self._manifest, num_slots, capacity)

    def forward(self, cache: HostCache, wanted: Pass, handed: Values) -> Values:
        """What this part makes of a pass and of values handed on to it. Raises ProviderError."""
        inputs = {**prepare_inputs(cache, wanted, self._manifest, 1), **handed}
        binding = self._session.io_binding()
        for name in self._inputs & inputs.keys():
            binding.bind_cpu_input(name, np.ascontiguousarray(inputs[name]))
        slots = wanted.first_slot, len(wanted.trees)
        tensors, capsules = cache.tensors(*slots), cache.begin_pass(*slots, inputs["input_ids"].shape[1])
        for name, array in tensors.items():
            value = ort.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(present_name(name), value)
        for name, array in cache.read_tensors(*slots).items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in capsules.items():
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name in self._outputs:
            binding.bind_output(name)
        run_bound(self._session, binding)
        if "num_kept" in inputs:
            cache.end_pass(wanted.first_slot, inputs["num_kept"].tolist())
        self._weights.forget()
        made = binding.get_outputs()[len(tensors) + len(capsules) :]
        return {name: value.numpy() for name, value in zip(self._outputs, made, strict=True)}


def _manifest_of(manifest: Manifest, inputs: set[str]) -> Manifest:
    """A manifest in which only those layers keep anything whose tensors are among a graph's inputs."""
    layers = {number: layer for number, layer in enumerate(manifest.layers) if layer.states}
    layers.update(manifest.cached_layers)
    read = {int(name.rpartition(".")[2]) for name in inputs if name.startswith(("past_", "state_"))}
    kept = tuple(layers[number] if number in read else Layer.none() for number in range(manifest.num_layers))
    return replace(manifest, layers=kept)
