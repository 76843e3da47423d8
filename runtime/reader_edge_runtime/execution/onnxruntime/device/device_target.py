"""The target model on a device: fixed tensors there, and passes padded to sizes that are captured and replayed."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import cast

import numpy as np

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.inputs import Inputs, padded, prepare_inputs
from reader_edge_runtime.execution.onnxruntime.device.buckets import (
    MAX_CAPTURED,
    TREE_SIZES,
    slot_bucket,
    tree_bucket,
    visible_bucket,
)
from reader_edge_runtime.execution.onnxruntime.device.cuda import gpu_name
from reader_edge_runtime.execution.onnxruntime.device.device_cache import (
    ELEMENT_TYPES,
    CommitGraph,
    DeviceArray,
    DeviceCache,
    slot_view,
)
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_contract, input_tensors, output_tensors
from reader_edge_runtime.execution.onnxruntime.session import (
    CPU,
    CUDA,
    NOT_CAPTURED,
    load_placed,
    run_bound,
    run_options,
    session_options,
)
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import COMMIT_NAME, GRAPH_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass

PREFILL_CHUNK = 256  # nodes of the widest pass
_LEAST_CHUNK = 64
_SCORE_BYTES = 3 * 8  # exact attention holds scores, masked ones and weights in float64
_MOST_SCORES = 1 << 29  # bytes of a layer's

_PROVIDERS = {"cpu": CPU, "cuda": CUDA}

Sizes = tuple[int, int, int, int]


@dataclass(slots=True)
class _BoundPass:
    """A pass of fixed sizes: its tensors, their binding, and the id that its capture is replayed by."""

    session: ort.InferenceSession
    inputs: dict[str, DeviceArray]
    outputs: dict[str, DeviceArray]
    binding: ort.IOBinding
    graph_id: int = NOT_CAPTURED


class DeviceTarget:
    """A `reader_edge_runtime.target.Target` with all tensors on `device`, "cuda" or, to test the same code, "cpu".

    num_captured: passes captured for replay so far, those of caches that are gone included.
    graph_ids: of the session's captures, shared by all targets on it. is_captured: whether passes are at all.
    """

    is_captured = True
    is_native = False
    instructions: str | None = None
    pass_sizes: tuple[int, ...] = TREE_SIZES

    def __init__(
        self,
        session: ort.InferenceSession,
        manifest: Manifest,
        device: str,
        commit_graph: CommitGraph,
        min_rows: int = 1,
        graph_ids: Iterator[int] | None = None,
    ) -> None:
        self.session = session
        self.manifest = manifest
        self.device = device
        self.min_rows = min_rows
        self.provider = str(session.get_providers()[0])
        self.pass_facts: tuple[str, ...] = INSTALLED_WHEEL, gpu_name()
        self.num_captured = 0
        self._commit_graph = commit_graph
        self._graph_ids = graph_ids or count(1)
        self._passes: dict[tuple[int, Sizes], _BoundPass] = {}
        self._pass_outputs: dict[tuple[int, int], dict[str, DeviceArray]] = {}
        self._bound_memory: DeviceArray | None = None

    @classmethod
    def open_on(cls, package: ModelPackage, device: str, threads: int = 0) -> "DeviceTarget":
        """Load the package's graphs on a device and check that every node runs there. Raises ProviderError."""
        check_made_for_devices(package)
        provider = _PROVIDERS[device]
        session = load_placed(package.path(GRAPH_NAME), session_options(threads), provider)
        check_contract(session, package.manifest)
        commit_graph = CommitGraph(package.path(COMMIT_NAME), device, provider)
        return cls(session, package.manifest, device, commit_graph)

    def with_min_rows(self, min_rows: int) -> "DeviceTarget":
        return DeviceTarget(self.session, self.manifest, self.device, self._commit_graph, min_rows, self._graph_ids)

    def new_cache(self, num_slots: int, capacity: int) -> DeviceCache:
        return DeviceCache(self.manifest, num_slots, capacity, self.device, self._commit_graph)

    def prefill_chunk(self, past: int) -> int:
        size, is_exact = PREFILL_CHUNK, self.manifest.attention == "exact"
        row_bytes = self.manifest.num_heads * _SCORE_BYTES
        while is_exact and size > _LEAST_CHUNK and size * (past + size) * row_bytes > _MOST_SCORES:
            size //= 2
        return size

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        inputs = prepare_inputs(cache, wanted, self.manifest, self.min_rows)
        num_trees, num_rows = inputs["logit_rows"].shape
        device_cache = cast(DeviceCache, cache)  # made by `new_cache`
        sizes = self._padded_sizes(inputs, wanted.first_slot, device_cache)
        slots = range(wanted.first_slot, wanted.first_slot + sizes[0])
        # Padding trees write behind what their slots hold, if anything.
        inputs["write_pos"] = np.array([cache.lengths[slot] if slot < cache.num_slots else 0 for slot in slots])
        bound = self._bound_pass(device_cache, wanted.first_slot, sizes)
        for name, array in inputs.items():
            bound.inputs[name].write(padded(name, array, bound.inputs[name].shape))
        run_bound(bound.session, bound.binding, run_options(bound.graph_id))
        names = ["top_ids", "top_logits"]
        names += ["logits"] * wanted.wants_logits + ["log_sum_exp"] * wanted.wants_log_sum_exp
        return ForwardResult(**{name: bound.outputs[name].read()[:num_trees, :num_rows] for name in names})

    def release_memory(self) -> None:
        """Let go of captured passes, and of what they read and write."""
        for bound in self._passes.values():
            if bound.graph_id != NOT_CAPTURED:
                bound.session.release_captured_graph(bound.graph_id)
        self._passes.clear()
        self._pass_outputs.clear()

    def _bound_pass(self, cache: DeviceCache, first_slot: int, sizes: Sizes) -> _BoundPass:
        """Tensors and binding of a pass, forgotten when the cache moves.

        A size that comes again is captured: that takes three runs more, which a size seen once would not repay.
        """
        if self._bound_memory is not cache.memory:
            self.release_memory()
            self._bound_memory = cache.memory  # held, so that no other cache takes the address of a bound one
        bound = self._passes.get((first_slot, sizes))
        if bound is None:
            bound = self._bind(cache, first_slot, sizes)
            if sizes[1] <= MAX_CAPTURED:
                self._passes[first_slot, sizes] = bound
        elif self.is_captured and bound.graph_id == NOT_CAPTURED:
            bound.graph_id = next(self._graph_ids)
            self.num_captured += 1
        return bound

    def _padded_sizes(self, inputs: Inputs, first_slot: int, cache: DeviceCache) -> Sizes:
        """N, M and R as padded to their buckets; and B, where the package promises bits: kernels go by rows in all."""
        num_trees, num_nodes = inputs["input_ids"].shape
        _, num_slots, _, capacity, _ = cache.memory.shape
        padded_trees, padded_nodes = slot_bucket(num_trees), tree_bucket(num_nodes)
        if self.manifest.attention == "exact" and first_slot + padded_trees <= num_slots:
            num_trees = padded_trees
        num_visible = inputs["tree_mask"].shape[-1] + padded_nodes - num_nodes
        num_rows = inputs["logit_rows"].shape[1]
        return num_trees, padded_nodes, visible_bucket(num_visible, capacity), tree_bucket(num_rows)

    def _bind(self, cache: DeviceCache, first_slot: int, sizes: Sizes) -> _BoundPass:
        num_trees, _, _, num_rows = sizes
        tensors = input_tensors(self.manifest, *sizes)
        inputs = {name: DeviceArray(self.device, *tensor) for name, tensor in tensors.items()}
        outputs = self._outputs(num_trees, num_rows)
        session = self._session_for(cache.memory)
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value.value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value.value)
        kv = (self.device, 0, ELEMENT_TYPES[self.manifest.kv_dtype])
        names = zip(self.manifest.past_names(), self.manifest.present_names(), strict=True)
        for index, (past, present) in enumerate(names):
            view = slot_view(cache.memory, index, first_slot, num_trees)
            binding.bind_input(past, *kv, *view)
            binding.bind_output(present, *kv, *view)
        return _BoundPass(session, inputs, outputs, binding)

    def _session_for(self, memory: DeviceArray) -> ort.InferenceSession:
        """What runs passes over a cache of such memory."""
        return self.session

    def _outputs(self, num_trees: int, num_rows: int) -> dict[str, DeviceArray]:
        """Shared by the passes with as many rows: a result is valid until the next pass."""
        rows = num_trees, num_rows
        if rows not in self._pass_outputs:
            tensors = output_tensors(self.manifest, *rows)
            self._pass_outputs[rows] = {name: DeviceArray(self.device, *tensor) for name, tensor in tensors.items()}
        return self._pass_outputs[rows]


def check_made_for_devices(package: ModelPackage) -> None:
    """Raise ProviderError for a package that no device runs."""
    if COMMIT_NAME not in package.manifest.files:
        raise ProviderError(
            f"'{package.folder}' is made for the CPU ({package.manifest.precision}, "
            f"{package.manifest.attention} attention): export it with --precision fp16, or use --provider cpu."
        )
    if package.manifest.layers:
        raise ProviderError(
            f"'{package.folder}' has recurrent layers, or others that are not alike, which run on the CPU alone: "
            "use --provider cpu."
        )
