"""The target model on the CPU: one forward pass over the draft trees of B sequences, without a copy of any logits."""

from typing import cast

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.inputs import Inputs, prepare_inputs
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_contract
from reader_edge_runtime.execution.onnxruntime.host.cache_bindings import CacheBindings
from reader_edge_runtime.execution.onnxruntime.host.host_cache import Capsules, HostCache
from reader_edge_runtime.execution.onnxruntime.host.hybrid_cache import HybridCache
from reader_edge_runtime.execution.onnxruntime.host.needed_memory import check_memory
from reader_edge_runtime.execution.onnxruntime.native import (
    OPERATORS_PROPERTY,
    library_digest,
    native_instructions,
    native_library,
)
from reader_edge_runtime.execution.onnxruntime.session import open_session, run_bound
from reader_edge_runtime.execution.onnxruntime.wheel import INSTALLED_WHEEL, ort
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.machine.process_memory import FilePages, large_blocks_apart, mapped_ranges
from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass

Sizes = tuple[int, int, int]  # B, N and R

# Tokens of a prompt in one pass: more take more memory and hardly less time.
_NATIVE_CHUNK, _CHUNK, _LATE_CHUNK = 128, 64, 32
_LATE = 1536  # tokens of the past from which scores take more memory than all else of a pass
_MAX_KEPT = 64  # sizes of passes whose tensors are kept
_MAX_LOOKED_UP = 32  # tokens whose embeddings stay in memory: each is read with 64 KiB around it


class PassTensors:
    """What passes read and write beside KV cache and masks, in the same places of memory from step to step.

    inputs: int64, by name. logits: float32 (B, R, V), memory that others may share.
    top_ids, top_logits: int64 and float32 (B, R, K). hidden_states: float32 (B, R, E), layer_states: float32
    (J, B, N, E); None where none are reported.
    """

    def __init__(self, inputs: Inputs, logits: Float32Array, manifest: Manifest) -> None:
        """inputs: those of a pass of the same sizes; masks, as wide as the past, are left to the pass."""
        num_trees, num_rows = inputs["logit_rows"].shape
        self.inputs = {name: array.copy() for name, array in inputs.items() if array.dtype == np.int64}
        self.logits = logits
        self.top_ids = np.zeros((num_trees, num_rows, manifest.top_k), np.int64)
        self.top_logits = np.zeros((num_trees, num_rows, manifest.top_k), np.float32)
        outputs = {"logits": logits, "top_ids": self.top_ids, "top_logits": self.top_logits}
        self.hidden_states: Float32Array | None = None
        if manifest.hidden_size is not None:
            self.hidden_states = np.zeros((num_trees, num_rows, manifest.hidden_size), np.float32)
            outputs["hidden_states"] = self.hidden_states
        self.layer_states: Float32Array | None = None
        if manifest.state_ids:
            sizes = len(manifest.state_ids), *inputs["input_ids"].shape, manifest.hidden_size or 0
            self.layer_states = np.zeros(sizes, np.float32)
            outputs |= zip(manifest.layer_state_names(), self.layer_states, strict=True)
        self._inputs = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.inputs.items()}
        self._outputs = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in outputs.items()}

    def bind_to(self, binding: ort.IOBinding) -> None:
        """Let passes of a binding read and write here."""
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            binding.bind_ortvalue_output(name, value)


class HostTarget:
    """A `reader_edge_runtime.target.Target` on ONNX Runtime's CPU provider.

    weights: the file that embeddings are read from, as far as the session maps it.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        manifest: Manifest,
        is_native: bool = False,
        weights: FilePages | None = None,
        min_rows: int = 1,
    ) -> None:
        self.session = session
        self.manifest = manifest
        self.is_native = is_native
        self.pass_sizes: tuple[int, ...] = ()
        self.instructions = native_instructions() if is_native else None
        self.min_rows = min_rows
        self.provider = str(session.get_providers()[0])
        self.pass_facts: tuple[str, ...] = INSTALLED_WHEEL, library_digest() if is_native else ""
        self._weights = weights
        self._num_looked_up = 0
        self._run_options: ort.RunOptions | None = None
        self._logits = np.empty(0, np.float32)
        self._tensors: dict[Sizes, PassTensors] = {}
        self._bound: tuple[ort.IOBinding, PassTensors, Capsules] | None = None
        self._bindings = CacheBindings(session)

    @classmethod
    def open(cls, package: ModelPackage, threads: int = 0, uses_native: bool = True) -> "HostTarget":
        """uses_native: take native kernels where they are installed.

        Raises ProviderError (MemoryShortageError where memory is short) or InstallationError.
        """
        if package.manifest.kv_dtype == "bfloat16":
            raise ProviderError(
                f"'{package.folder}' is in bf16, which ONNX Runtime does not multiply on a CPU: "
                "use --provider cuda, or export with another --precision."
            )
        library = native_library() if uses_native else None
        if library is not None:  # without it some weights may stay in the file
            check_memory(package)
        weights = package.folder / WEIGHTS_NAME
        with large_blocks_apart():
            others = mapped_ranges(weights)  # of other sessions on the same package, which may end before this one
            session = open_session(package.path(GRAPH_NAME), threads, library)
            pages = FilePages(weights, others)
        check_contract(session, package.manifest)
        is_native = library is not None and OPERATORS_PROPERTY in session.get_modelmeta().custom_metadata_map
        return cls(session, package.manifest, is_native, pages)

    def with_min_rows(self, min_rows: int) -> "HostTarget":
        return HostTarget(self.session, self.manifest, self.is_native, self._weights, min_rows)

    def new_cache(self, num_slots: int, capacity: int) -> HostCache:
        return (HybridCache if self.manifest.has_states else HostCache)(self.manifest, num_slots, capacity)

    def prefill_chunk(self, past: int) -> int:
        # Native attention adds up scores as they come; the graph's own definition holds them all.
        return _NATIVE_CHUNK if self.is_native else _CHUNK if past < _LATE else _LATE_CHUNK

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        cache = cast(HostCache, cache)  # made by `new_cache`
        inputs = prepare_inputs(cache, wanted, self.manifest, self.min_rows)
        binding = self._bindings.of(cache, wanted.first_slot, len(wanted.trees))
        tensors = self._tensors_of(inputs)
        capsules = cache.begin_pass(wanted.first_slot, *inputs["input_ids"].shape)
        to_bind = binding, tensors, capsules
        if self._bound is None or any(new is not old for new, old in zip(to_bind, self._bound, strict=True)):
            self._bound = None  # an interrupt during the binding leaves nothing bound
            tensors.bind_to(binding)
            for name, rows in capsules.items():
                binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(rows))
            self._bound = to_bind
        for name, array in inputs.items():
            if name in tensors.inputs:
                tensors.inputs[name][:] = array
            else:  # a mask, as wide as the past
                binding.bind_cpu_input(name, array)
        run_bound(self.session, binding, self._run_options)
        if "num_kept" in inputs:
            cache.end_pass(wanted.first_slot, inputs["num_kept"].tolist())
        self._run_options = None
        self._forget_embeddings(inputs["input_ids"].size)
        wants_logits = wanted.wants_logits or wanted.wants_log_sum_exp  # which no graph for the CPU computes
        logits = tensors.logits if wants_logits else None
        hidden_states = tensors.hidden_states if wanted.wants_hidden_states else None
        layer_states = tensors.layer_states if wanted.wants_layer_states else None
        said = tensors.top_ids.copy(), tensors.top_logits.copy()
        return ForwardResult(*said, logits, None, hidden_states, layer_states)

    def release_memory(self) -> None:
        """Let go of what passes so far needed, at the end of the next one."""
        self._tensors.clear()
        self._logits = np.empty(0, np.float32)
        self._bound = None
        self._run_options = ort.RunOptions()
        self._run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def _forget_embeddings(self, num_looked_up: int) -> None:
        """Keep the rows of a large vocabulary, each read with its surroundings, from adding up to a second copy."""
        self._num_looked_up += num_looked_up
        if self._weights is not None and self._num_looked_up >= _MAX_LOOKED_UP:
            self._weights.forget()
            self._num_looked_up = 0

    def _tensors_of(self, inputs: Inputs) -> PassTensors:
        """The tensors for a pass of such sizes; the logits of all passes share their memory."""
        num_trees, num_rows = inputs["logit_rows"].shape
        sizes = num_trees, inputs["input_ids"].shape[1], num_rows
        if sizes not in self._tensors:
            num_values = num_trees * num_rows * self.manifest.vocab_size
            if self._logits.size < num_values:
                self._logits = np.empty(num_values, np.float32)
                self._tensors.clear()
            elif len(self._tensors) == _MAX_KEPT:
                self._tensors.clear()
            logits = self._logits[:num_values].reshape(num_trees, num_rows, self.manifest.vocab_size)
            self._tensors[sizes] = PassTensors(inputs, logits, self.manifest)
        return self._tensors[sizes]
