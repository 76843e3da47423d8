"""A pipeline stage on the CPU: some of the model's layers, which take hidden states from the stage before."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.inputs import prepare_inputs
from reader_edge_runtime.execution.onnxruntime.graph_contract import output_tensors
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_graph import HostGraph, PassTensors, Values
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session, run_bound
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.machine.process_memory import FilePages, large_blocks_apart
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.package_parts import HANDED_IN, HANDED_OUT, StagePart
from reader_edge_runtime.target import Pass

_NUM_TIMED = 5


class HostStage(HostGraph):
    """Passes have the bits that they have in `HostTarget`."""

    @property
    def part(self) -> StagePart:
        """Which layers these are."""
        assert self.manifest.stage is not None
        return self.manifest.stage

    def pass_seconds(self, before: Callable[[], object] = int) -> float:
        """What a pass of one node takes, the best of some. before: is called before each."""
        shape = 1, 1, self.part.width
        handed = None if self.part.is_first else np.zeros(shape, np.float32)
        cache, times = self.new_cache(1, 16), []
        for _ in range(_NUM_TIMED):
            before()
            started = time.perf_counter()
            self.forward(cache, Pass(0, [DraftTree.root(0)], [range(1)]), 1, handed)
            times.append(time.perf_counter() - started)
        return min(times)

    def forward(self, cache: HostCache, wanted: Pass, min_rows: int, handed: Float32Array | None) -> Values:
        """What the graph says of a pass, by name, in memory of the caller's own.

        handed: float32 (B, N, E), what the stage before made of the same pass; None in the first. Raises ProviderError.
        """
        inputs = prepare_inputs(cache, wanted, self.manifest, min_rows)
        if handed is not None:
            inputs[HANDED_IN] = handed
        binding = self._bindings.of(cache, wanted.first_slot, len(wanted.trees))
        self._bind_inputs(binding, inputs)
        num_trees, num_nodes = inputs["position_ids"].shape
        num_rows = inputs["logit_rows"].shape[1] if self.part.is_last else num_nodes
        outputs = output_tensors(self.manifest, num_trees, num_rows)
        made = PassTensors({}, {name: np.empty(shape, dtype) for name, (dtype, shape) in outputs.items()})
        made.bind_to(binding)
        run_bound(self.session, binding)
        self._forget_embeddings(1)
        return made.outputs

    def hand_on(self, cache: HostCache, wanted: Pass, min_rows: int, handed: Float32Array | None) -> Float32Array:
        """float32 (B, N, E), for the next stage; arguments and errors: see `forward`."""
        made: Float32Array = self.forward(cache, wanted, min_rows, handed)[HANDED_OUT]
        return made


class HostPart(HostGraph):
    """Passes have the bits that they have in `HostTarget`. Its caches hold its own layers alone."""

    def __init__(
        self,
        session: ort.InferenceSession,
        manifest: Manifest,
        is_native: bool = False,
        weights: FilePages | None = None,
    ) -> None:
        inputs = {node.name for node in session.get_inputs()}
        super().__init__(session, _manifest_of(manifest, inputs), is_native, weights)
        kept = {f"{word}_{name}" for name in self.manifest.state_sizes() for word in ("present", "capsule")}
        kept.update(self.manifest.present_names())
        self._outputs = [node.name for node in session.get_outputs() if node.name not in kept]

    @classmethod
    def load(cls, graph: bytes, weights: Path, manifest: Manifest) -> "HostPart":
        """Run with native kernels where they are installed.

        graph: the part as an ONNX file has it. weights: the file that it refers to. manifest: the package's.
        Raises ProviderError or InstallationError.
        """
        with large_blocks_apart():
            session = open_session(graph, 0, native_library(), weights_folder=weights.parent)
            return cls(session, manifest, weights=FilePages(weights))

    def forward(self, cache: HostCache, wanted: Pass, handed: Values) -> Values:
        """What this part makes of a pass and of values handed on to it. Raises ProviderError."""
        inputs = {**prepare_inputs(cache, wanted, self.manifest, 1), **handed}
        slots = wanted.first_slot, len(wanted.trees)
        deltas = cache.begin_pass(*slots, inputs["input_ids"].shape[1])
        binding = self._bindings.of(cache, *slots)
        self._bind_inputs(binding, {name: np.ascontiguousarray(array) for name, array in inputs.items()})
        PassTensors({}, dict(deltas)).bind_to(binding)
        for name in self._outputs:
            binding.bind_output(name)
        run_bound(self.session, binding)
        if "num_kept" in inputs:
            cache.end_pass(wanted.first_slot, inputs["num_kept"].tolist())
        self._forget_embeddings(inputs["input_ids"].size)
        made = binding.get_outputs()[-len(self._outputs) :]
        return {name: value.numpy() for name, value in zip(self._outputs, made, strict=True)}


def _manifest_of(manifest: Manifest, inputs: set[str]) -> Manifest:
    """A manifest in which only those layers keep anything whose tensors are among a graph's inputs."""
    layers = {number: layer for number, layer in enumerate(manifest.layers) if layer.states}
    layers.update(manifest.cached_layers)
    read = {int(name.rpartition(".")[2]) for name in inputs if name.startswith(("past_", "state_"))}
    kept = tuple(layers[number] if number in read else Layer.none() for number in range(manifest.num_layers))
    return replace(manifest, layers=kept)
