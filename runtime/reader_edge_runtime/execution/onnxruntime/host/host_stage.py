"""A stage of a model on the CPU: its layers take the residual stream from the stage before and hand it on."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.inputs import prepare_inputs
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_contract, output_tensors
from reader_edge_runtime.execution.onnxruntime.host.cache_bindings import CacheBindings
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.needed_memory import check_memory
from reader_edge_runtime.execution.onnxruntime.native import (
    OPERATORS_PROPERTY,
    library_digest,
    native_instructions,
    native_library,
)
from reader_edge_runtime.execution.onnxruntime.session import open_session, run_bound
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort
from reader_edge_runtime.machine.process_memory import FilePages, large_blocks_apart, mapped_ranges
from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.stage_part import HANDED_IN, HANDED_OUT
from reader_edge_runtime.target import Pass

Values = Mapping[str, npt.NDArray[Any]]  # by name, as a graph has them

_NUM_TIMED = 5
_MAX_LOOKED_UP = 32  # passes between two times that the file's pages are let go of


class HostStage:
    """Passes have the bits that they have in `HostTarget`. facts: versions and kernels that those bits depend on."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest, is_native: bool, weights: FilePages) -> None:
        assert manifest.stage is not None
        self.manifest = manifest
        self.part = manifest.stage
        self.is_native = is_native
        self.instructions = native_instructions() if is_native else None
        self.provider = str(session.get_providers()[0])
        self.facts: tuple[str, ...] = INSTALLED_WHEEL, library_digest() if is_native else ""
        self._session = session
        self._weights = weights
        self._inputs = {node.name for node in session.get_inputs()}
        self._num_passes = 0
        self._bindings = CacheBindings(session)

    @classmethod
    def open(cls, package: ModelPackage, threads: int = 0, uses_native: bool = True) -> "HostStage":
        """Raises ProviderError (MemoryShortageError where memory is short) or InstallationError."""
        library = native_library() if uses_native else None
        if library is not None:
            check_memory(package)
        weights = package.folder / WEIGHTS_NAME
        with large_blocks_apart():
            others = mapped_ranges(weights)
            session = open_session(package.path(GRAPH_NAME), threads, library)
            pages = FilePages(weights, others)
        check_contract(session, package.manifest)
        is_native = library is not None and OPERATORS_PROPERTY in session.get_modelmeta().custom_metadata_map
        return cls(session, package.manifest, is_native, pages)

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

    def new_cache(self, num_slots: int, capacity: int) -> HostCache:
        return HostCache(self.manifest, num_slots, capacity)

    def forward(self, cache: HostCache, wanted: Pass, min_rows: int, handed: Float32Array | None) -> Values:
        """What the graph says of a pass, by name, in memory of the caller's own.

        handed: float32 (B, N, E), what the stage before made of the same pass; None in the first. Raises ProviderError.
        """
        inputs = prepare_inputs(cache, wanted, self.manifest, min_rows)
        if handed is not None:
            inputs[HANDED_IN] = handed
        binding = self._bindings.of(cache, wanted.first_slot, len(wanted.trees))
        for name in self._inputs & inputs.keys():
            binding.bind_cpu_input(name, inputs[name])
        num_trees, num_nodes = inputs["position_ids"].shape
        num_rows = inputs["logit_rows"].shape[1] if self.part.is_last else num_nodes
        made = {}
        for name, (dtype, shape) in output_tensors(self.manifest, num_trees, num_rows).items():
            made[name] = np.empty(shape, dtype)
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(made[name]))
        run_bound(self._session, binding)
        self._num_passes += 1
        if self._num_passes % _MAX_LOOKED_UP == 0:
            self._weights.forget()
        return made

    def hand_on(self, cache: HostCache, wanted: Pass, min_rows: int, handed: Float32Array | None) -> Float32Array:
        """float32 (B, N, E), for the next stage; arguments and errors: see `forward`."""
        made: Float32Array = self.forward(cache, wanted, min_rows, handed)[HANDED_OUT]
        return made
