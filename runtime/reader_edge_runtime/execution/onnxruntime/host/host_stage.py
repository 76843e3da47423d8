"""A stage of a model on the CPU: its layers take the residual stream from the stage before and hand it on."""

import time
from collections.abc import Callable

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.inputs import prepare_inputs
from reader_edge_runtime.execution.onnxruntime.graph_contract import output_tensors
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_graph import HostGraph, PassTensors, Values
from reader_edge_runtime.execution.onnxruntime.session import run_bound
from reader_edge_runtime.package.stage_part import HANDED_IN, HANDED_OUT, StagePart
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
