"""The target model: one forward pass over the draft trees of B sequences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_contract
from reader_edge_runtime.execution.onnxruntime.host.kv_cache import KVCache
from reader_edge_runtime.execution.onnxruntime.host.pass_tensors import PassTensors, Sizes
from reader_edge_runtime.execution.onnxruntime.native import has_native_operators, native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session, shrinking_options
from reader_edge_runtime.package.manifest import GRAPH_NAME, MASKED, WEIGHTS_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.process_memory import FilePages, large_blocks_apart

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
Inputs = dict[str, npt.NDArray[np.generic]]

# Tokens of a prompt in one pass: more take more memory and hardly less time.
_NATIVE_CHUNK, _CHUNK, _LATE_CHUNK = 128, 64, 32
_LATE = 1536  # tokens of the past from which scores take more memory than all else of a pass
_MAX_KEPT = 64  # sizes of passes whose tensors are kept
_MAX_LOOKED_UP = 32  # tokens whose embeddings stay in memory: each is read with 64 KiB around it


@dataclass(frozen=True)
class ForwardResult:
    """What a pass says of the rows asked for, B trees with R rows each.

    top_ids, top_logits: int64 and float32 (B, R, K), the best successors, best first.
    read_logits: gives the logits, valid until the next pass, which may still lie on a device.
    read_log_sum_exp: gives the logarithm of each row's summed exponentials, float32 (B, R), where a device computed it.
    """

    top_ids: Int64Array
    top_logits: Float32Array
    read_logits: Callable[[], Float32Array]
    read_log_sum_exp: Callable[[], Float32Array] | None = None

    @cached_property
    def logits(self) -> Float32Array:
        """float32 (B, R, V)."""
        return self.read_logits()

    def log_probability(self, b: int, row: int, token_id: int) -> float:
        """Natural logarithm of what the target gives a token after row (b, row), at temperature 1."""
        if self._log_sum_exp is None:
            logits = self.logits[b, row]
            best = logits.max()
            return float(logits[token_id] - best - np.log(np.exp(logits - best).sum()))
        found = np.flatnonzero(self.top_ids[b, row] == token_id)
        logit = self.top_logits[b, row, found[0]] if found.size else self.logits[b, row, token_id]
        return float(logit - self._log_sum_exp[b, row])

    @cached_property
    def _log_sum_exp(self) -> Float32Array | None:
        return None if self.read_log_sum_exp is None else self.read_log_sum_exp()


class TargetModel:
    """An ONNX Runtime session that follows the graph contract of `reader_edge_runtime.package.manifest`.

    is_native: native kernels run parts of the graph.
    min_rows: B * N at least, filled up with nodes nobody looks at: kernels for a single row may give other bits.
    weights: the file that embeddings are read from, as far as the session maps it.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        manifest: Manifest,
        is_native: bool = False,
        weights: FilePages | None = None,
    ) -> None:
        self.session = session
        self.manifest = manifest
        self.is_native = is_native
        self.min_rows = 1
        self._weights = weights
        self._num_looked_up = 0
        self._run_options: ort.RunOptions | None = None
        self._logits = np.empty(0, np.float32)
        self._tensors: dict[Sizes, PassTensors] = {}
        self._bound: tuple[ort.IOBinding, PassTensors] | None = None
        self._bindings: dict[tuple[int, int], ort.IOBinding] = {}
        self._bound_slab: npt.NDArray[np.floating] | None = None

    @classmethod
    def open(cls, package: ModelPackage, threads: int = 0, uses_native: bool = True) -> "TargetModel":
        """Load the package's graph on the CPU and check it against the contract.

        uses_native: take native kernels where they are installed. Raises ProviderError or InstallationError.
        """
        if package.manifest.kv_dtype == "bfloat16":
            raise ProviderError(
                f"'{package.folder}' is in bf16, which ONNX Runtime does not multiply on a CPU: "
                "use --provider cuda, or export with another --precision."
            )
        library = native_library() if uses_native else None
        with large_blocks_apart():
            session = open_session(package.path(GRAPH_NAME), threads, library)
        check_contract(session, package.manifest)
        is_native = library is not None and has_native_operators(session)
        return cls(session, package.manifest, is_native, FilePages(package.folder / WEIGHTS_NAME))

    @property
    def provider(self) -> str:
        """The execution provider that runs the graph, in ONNX Runtime's naming."""
        return str(self.session.get_providers()[0])

    def new_cache(self, num_slots: int, capacity: int) -> KVCache:
        """An empty cache where this model's passes can write it."""
        return KVCache(self.manifest, num_slots, capacity)

    def prefill_chunk(self, past: int) -> int:
        """How many tokens of a prompt to score at once after `past` others, for the memory that passes take.

        Native attention adds up scores as they come; the graph's own definition holds them all.
        """
        if self.is_native:
            return _NATIVE_CHUNK
        return _CHUNK if past < _LATE else _LATE_CHUNK

    def forward(
        self, cache: KVCache, first_slot: int, trees: Sequence[DraftTree], logit_rows: Sequence[Sequence[int]]
    ) -> ForwardResult:
        """Score all nodes of B trees against slots first_slot .. first_slot + B - 1.

        Writes each tree's KV rows at [length, length + N) of its slot without committing them; N is `num_nodes`, so
        every slot needs capacity for length + N rows.
        logit_rows: the nodes of each tree whose logits are wanted.
        R is the longest of logit_rows; shorter ones repeat the root's row.
        """
        inputs = self.build_inputs(cache.lengths[first_slot : first_slot + len(trees)], trees, logit_rows)
        binding = self._binding(cache, first_slot, len(trees))
        tensors = self._tensors_of(inputs)
        if self._bound != (binding, tensors):
            tensors.bind_to(binding)
            self._bound = binding, tensors
        for name, array in inputs.items():
            if name in tensors.inputs:
                tensors.inputs[name][:] = array
            else:  # a mask, as wide as the past
                binding.bind_cpu_input(name, array)
        self.session.run_with_iobinding(binding, self._run_options)
        self._run_options = None
        self._forget_embeddings(inputs["input_ids"].size)
        return ForwardResult(tensors.top_ids.copy(), tensors.top_logits.copy(), lambda: tensors.logits)

    def num_nodes(self, trees: Sequence[DraftTree]) -> int:
        """Nodes that a pass has for each tree: the widest one's, or what `min_rows` asks for."""
        return max(max(map(len, trees)), -(-self.min_rows // len(trees)))

    def build_inputs(
        self, lengths: Sequence[int], trees: Sequence[DraftTree], logit_rows: Sequence[Sequence[int]]
    ) -> Inputs:
        """The graph's inputs besides the KV cache. Shorter trees are padded with nodes nobody looks at."""
        num_trees, num_nodes = len(trees), self.num_nodes(trees)
        num_visible = max(lengths) + num_nodes
        num_rows = max(map(len, logit_rows))
        input_ids = np.zeros((num_trees, num_nodes), np.int64)
        position_ids = np.zeros((num_trees, num_nodes), np.int64)
        mask = np.full((num_trees, 1, num_nodes, num_visible), MASKED, np.float32)
        rows = np.zeros((num_trees, num_rows), np.int64)
        for b, (length, tree) in enumerate(zip(lengths, trees, strict=True)):
            size = len(tree)
            input_ids[b, :size] = tree.token_ids
            ancestors, depths = tree.ancestors_and_depths()
            position_ids[b, :size] = length + depths
            mask[b, 0, :size, :length] = 0.0
            mask[b, 0, :size, length : length + size][ancestors] = 0.0
            rows[b, : len(logit_rows[b])] = logit_rows[b]
        inputs: Inputs = {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "tree_mask": mask,
            "write_pos": np.array(lengths, np.int64),
            "logit_rows": rows,
        }
        if self.manifest.sliding_window is not None:
            inputs["tree_mask_sliding"] = _windowed(mask, position_ids, lengths, self.manifest.sliding_window)
        return inputs

    def release_memory(self) -> None:
        """Let go of what passes so far needed, at the end of the next one."""
        self._tensors.clear()
        self._logits = np.empty(0, np.float32)
        self._bound = None
        self._run_options = shrinking_options()

    def _forget_embeddings(self, num_looked_up: int) -> None:
        """Keep the rows of a large vocabulary, each read with its surroundings, from adding up to a second copy."""
        self._num_looked_up += num_looked_up
        if self._weights is not None and self._num_looked_up >= _MAX_LOOKED_UP:
            self._weights.forget()
            self._num_looked_up = 0

    def _binding(self, cache: KVCache, first_slot: int, num_slots: int) -> ort.IOBinding:
        """The KV tensors of a slot range, each bound as input and output at once; kept until the slab moves."""
        if self._bound_slab is not cache.slab:
            self._bindings.clear()
            self._bound_slab = cache.slab
        binding = self._bindings.get((first_slot, num_slots))
        if binding is None:
            binding = self.session.io_binding()
            names = zip(self.manifest.past_names(), self.manifest.present_names(), strict=True)
            for index, (past, present) in enumerate(names):
                value = ort.OrtValue.ortvalue_from_numpy(cache.layer_view(index, first_slot, num_slots))
                binding.bind_ortvalue_input(past, value)
                binding.bind_ortvalue_output(present, value)
            self._bindings[first_slot, num_slots] = binding
        return binding

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
            self._tensors[sizes] = PassTensors(sizes, logits, self.manifest.top_k)
        return self._tensors[sizes]


def _windowed(
    mask: Float32Array, position_ids: Int64Array, lengths: Sequence[int], sliding_window: int
) -> Float32Array:
    """The mask of windowed layers: by token depth, not by row, so that a node counts its own ancestors only."""
    windowed = mask.copy()
    num_nodes = position_ids.shape[1]
    for b, length in enumerate(lengths):
        key_positions = np.arange(mask.shape[-1])
        key_positions[length : length + num_nodes] = position_ids[b]
        windowed[b, 0][position_ids[b][:, None] - key_positions >= sliding_window] = MASKED
    return windowed
