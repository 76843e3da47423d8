"""The target model on the CPU: one forward pass over the draft trees of B sequences, without a copy of any logits."""

from typing import cast

import numpy as np

from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.execution.inputs import Inputs, prepare_inputs
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache, StateDeltas
from reader_edge_runtime.execution.onnxruntime.host.host_graph import HostGraph, PassTensors
from reader_edge_runtime.execution.onnxruntime.session import run_bound
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.machine.process_memory import FilePages
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Pass

Sizes = tuple[int, int, int]  # B, N and R

# Tokens of a prompt in one pass: more take more memory and hardly less time.
_NATIVE_CHUNK, _CHUNK, _LATE_CHUNK = 192, 64, 32
_LATE = 1536  # tokens of the past from which scores take more memory than all else of a pass
_MAX_KEPT = 64  # sizes of passes whose tensors are kept


class TargetTensors(PassTensors):
    """logits: float32 (B, R, V), memory that others may share.

    top_ids, top_logits: int64 and float32 (B, R, K). hidden_states: float32 (B, R, E), layer_states: float32
    (J, B, N, E); None where none are reported.
    """

    def __init__(self, inputs: Inputs, logits: Float32Array, manifest: Manifest) -> None:
        """inputs: those of a pass of the same sizes; masks, as wide as the past, are left to the pass."""
        num_trees, num_rows = inputs["logit_rows"].shape
        self.logits = logits
        self.top_ids = np.zeros((num_trees, num_rows, manifest.top_k), np.int64)
        self.top_logits = np.zeros((num_trees, num_rows, manifest.top_k), np.float32)
        outputs: Inputs = {"logits": logits, "top_ids": self.top_ids, "top_logits": self.top_logits}
        self.hidden_states: Float32Array | None = None
        if manifest.hidden_size is not None:
            self.hidden_states = np.zeros((num_trees, num_rows, manifest.hidden_size), np.float32)
            outputs["hidden_states"] = self.hidden_states
        self.layer_states: Float32Array | None = None
        if manifest.state_ids:
            sizes = len(manifest.state_ids), *inputs["input_ids"].shape, manifest.hidden_size or 0
            self.layer_states = np.zeros(sizes, np.float32)
            outputs |= zip(manifest.layer_state_names(), self.layer_states, strict=True)
        super().__init__({name: array.copy() for name, array in inputs.items() if array.dtype == np.int64}, outputs)


class HostTarget(HostGraph):
    """A `reader_edge_runtime.target.Target` on ONNX Runtime's CPU provider."""

    def __init__(
        self,
        session: ort.InferenceSession,
        manifest: Manifest,
        is_native: bool = False,
        weights: FilePages | None = None,
        min_rows: int = 1,
    ) -> None:
        super().__init__(session, manifest, is_native, weights)
        self.min_rows = min_rows
        self._run_options: ort.RunOptions | None = None
        self._logits = np.empty(0, np.float32)
        self._tensors: dict[Sizes, TargetTensors] = {}
        self._bound: tuple[ort.IOBinding, TargetTensors, StateDeltas, Array] | None = None

    def with_min_rows(self, min_rows: int) -> "HostTarget":
        target = HostTarget(self.session, self.manifest, self.is_native, self._weights, min_rows)
        target.adapters = self.adapters
        return target

    def prefill_chunk(self, past: int) -> int:
        # Native attention adds up scores as they come; the graph's own definition holds them all.
        return _NATIVE_CHUNK if self.is_native else _CHUNK if past < _LATE else _LATE_CHUNK

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        cache = cast(HostCache, cache)  # made by `new_cache`
        inputs = prepare_inputs(cache, wanted, self.manifest, self.min_rows)
        binding = self._bindings.of(cache, wanted.first_slot, len(wanted.trees))
        tensors = self._tensors_of(inputs)
        deltas = cache.begin_pass(wanted.first_slot, *inputs["input_ids"].shape)
        to_bind = binding, tensors, deltas, self.adapters.values
        if self._bound is None or any(new is not old for new, old in zip(to_bind, self._bound, strict=True)):
            self._bound = None  # an interrupt during the binding leaves nothing bound
            tensors.bind_to(binding)
            for name, rows in deltas.items():
                binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(rows))
            if self.manifest.adapted_products:
                table = ort.OrtValue.ortvalue_from_numpy(self.adapters.values)
                binding.bind_ortvalue_input("adapter_table", table)
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
        successors = tensors.top_ids.copy(), tensors.top_logits.copy()
        return ForwardResult(*successors, logits, None, hidden_states, layer_states)

    def release_memory(self) -> None:
        """Let go of what passes so far needed, at the end of the next one."""
        self._tensors.clear()
        self._logits = np.empty(0, np.float32)
        self._bound = None
        self._run_options = ort.RunOptions()
        self._run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def _tensors_of(self, inputs: Inputs) -> TargetTensors:
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
            self._tensors[sizes] = TargetTensors(inputs, logits, self.manifest)
        return self._tensors[sizes]
