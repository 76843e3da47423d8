"""A trained speculator on the CPU: its passes over further tokens of texts, and over nodes of draft trees."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.speculators.speculator import SpeculatorResult, TreeStep
from reader_edge_runtime.execution.inputs import Inputs
from reader_edge_runtime.execution.onnxruntime.graph_contract import check_speculator
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_graph import CacheBindings, PassTensors, Values
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session, run_bound
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import MASKED, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import SPECULATOR_GRAPH_NAME, BlockPart, LentPart, SpeculatorPart

_MAX_KEPT = 64  # sizes of passes whose tensors are kept
_KEPT_WIDTH = 32  # nodes, or rows, of such a pass; wider ones come once in a while

Sizes = tuple[int, ...]  # of what a pass reads, then R; B comes first


class SpeculatorTensors(PassTensors):
    """What passes of one size read and write beside KV cache and masks, in the same places from pass to pass."""

    def __init__(self, inputs: Inputs, part: SpeculatorPart, num_rows: int) -> None:
        num_trees, num_nodes = inputs["input_ids"].shape
        rows = num_trees, num_rows
        inputs["write_pos"] = np.zeros(num_trees, np.int64)
        inputs["logit_rows"] = np.tile(np.arange(num_nodes - num_rows, num_nodes), (num_trees, 1))
        self.top_ids = np.zeros((*rows, part.top_k), np.int64)
        self.top_logits = np.zeros((*rows, part.top_k), np.float32)
        self.log_sum_exp = np.zeros(rows, np.float32)
        num_states = num_nodes if part.block is None else 0
        self.next_states = np.zeros((num_trees, num_states, part.hidden_size), np.float32)
        outputs = {name: getattr(self, name) for name in ("top_ids", "top_logits", "log_sum_exp")}
        self.pair_logits: Float32Array | None = None
        if part.block is None:
            outputs["next_states"] = self.next_states
        elif part.block.has_pairs:
            self.pair_logits = outputs["pair_logits"] = np.zeros((*rows, part.top_k, part.top_k), np.float32)
        super().__init__(inputs, outputs)
        self.binding: ort.IOBinding | None = None  # of passes without layers, which have nothing that moves

    @classmethod
    def of_nodes(cls, sizes: Sizes, part: SpeculatorPart, state_size: int) -> "SpeculatorTensors":
        """sizes: B, nodes with states of the target, others, and R."""
        num_trees, num_scored, num_others, num_rows = sizes
        num_nodes = num_scored + num_others
        inputs: Inputs = {
            "input_ids": np.zeros((num_trees, num_nodes), np.int64),
            "position_ids": np.zeros((num_trees, num_nodes), np.int64),
            "target_states": np.zeros((num_trees, num_scored, state_size), np.float32),
            "own_states": np.zeros((num_trees, num_others, part.hidden_size), np.float32),
        }
        if not part.num_layers and part.lent is None:  # nothing reads a mask
            inputs["tree_mask"] = np.zeros((num_trees, 1, num_nodes, 1), np.float32)
        return cls(inputs, part, num_rows)

    @classmethod
    def of_blocks(cls, sizes: Sizes, part: SpeculatorPart, state_size: int) -> "SpeculatorTensors":
        """sizes: B, rows of tokens, rows of a block, and R, which are its last."""
        num_texts, num_context, num_block, num_rows = sizes
        assert part.block is not None
        inputs: Inputs = {
            "input_ids": np.full((num_texts, num_block), part.block.mask_token_id, np.int64),
            "position_ids": np.zeros((num_texts, num_context + num_block), np.int64),
            "target_states": np.zeros((num_texts, num_context, state_size), np.float32),
        }
        return cls(inputs, part, num_rows)

    def result(self) -> SpeculatorResult:
        with np.errstate(all="ignore"):  # hostile weights give anything
            probabilities = np.exp(self.top_logits - self.log_sum_exp[..., None])
        return SpeculatorResult(self.top_ids, probabilities, self.next_states, self.pair_logits)


class HostSpeculator:
    """A `Speculator` on ONNX Runtime's CPU provider."""

    def __init__(self, session: ort.InferenceSession, package: ModelPackage) -> None:
        manifest = package.manifest
        assert manifest.speculator is not None
        assert manifest.hidden_size is not None
        self.part = part = manifest.speculator
        self.max_context = manifest.max_context
        self.state_size = len(part.state_ids) * manifest.hidden_size
        self._session = session
        self._kept = _kept(manifest, part)
        self._bindings = CacheBindings(session, [] if part.lent is None else self._kept.past_names())
        self._tensors: dict[Sizes, SpeculatorTensors] = {}

    @classmethod
    def open(cls, package: ModelPackage, threads: int = 0, uses_native: bool = True) -> "HostSpeculator":
        """The speculator of a package that has one. Raises ProviderError or InstallationError."""
        library, part = native_library() if uses_native else None, package.manifest.speculator
        if part is not None and not part.num_layers and part.lent is None:
            threads = 1  # an MLP's matrices are read sooner than others could begin
        session = open_session(package.path(SPECULATOR_GRAPH_NAME), threads, library)
        check_speculator(session, package.manifest)
        return cls(session, package)

    def new_cache(self, num_slots: int, capacity: int) -> HostCache:
        return HostCache(self._kept, num_slots, capacity)

    def catch_up(
        self,
        cache: Cache,
        first_slot: int,
        further: Sequence[Sequence[int]],
        states: Sequence[Float32Array],
        num_drafts: int = 1,
    ) -> SpeculatorResult:
        if self.part.block is not None:
            last = [tokens[-1] for tokens in further]
            return self._block_pass(self.part.block, cast(HostCache, cache), first_slot, last, states, num_drafts)
        steps = [TreeStep(DraftTree.chain(list(tokens)), 0, each) for tokens, each in zip(further, states, strict=True)]
        lengths = cache.lengths[first_slot : first_slot + len(steps)]
        return self._pass(cast(HostCache, cache), first_slot, steps, lengths, has_scores=True)

    def step(self, cache: Cache, first_slot: int, steps: Sequence[TreeStep]) -> SpeculatorResult:
        starts = [length - 1 for length in cache.lengths[first_slot : first_slot + len(steps)]]
        return self._pass(cast(HostCache, cache), first_slot, steps, starts, has_scores=False)

    def _pass(
        self, cache: HostCache, first_slot: int, steps: Sequence[TreeStep], starts: Sequence[int], has_scores: bool
    ) -> SpeculatorResult:
        """starts: the row of each tree's root. Shorter trees are padded with repetitions of their last node."""
        num_trees, num_nodes = len(steps), max(len(step.tree) - step.num_scored for step in steps)
        of_kind = (num_nodes, 0, 1) if has_scores else (0, num_nodes, num_nodes)
        tensors = self._tensors_of((num_trees, *of_kind))
        inputs = tensors.inputs
        states = inputs["target_states" if has_scores else "own_states"]
        for b, step in enumerate(steps):
            token_ids = step.tree.token_ids[step.num_scored :]
            last, num_missing = len(token_ids) - 1, num_nodes - len(token_ids)
            inputs["input_ids"][b] = token_ids + token_ids[-1:] * num_missing
            states[b, : last + 1], states[b, last + 1 :] = step.states, step.states[-1]
            if has_scores:
                inputs["logit_rows"][b] = last
        if self.part.lent is not None:
            binding = self._borrowing(cache, first_slot, tensors, self.part.lent)
        elif self.part.num_layers:
            write_pos = [start + step.num_scored for start, step in zip(starts, steps, strict=True)]
            binding = self._attention_binding(cache, first_slot, write_pos, num_nodes, tensors)
            mask = self._tree_masks(steps, starts, tensors.inputs)
            binding.bind_cpu_input("tree_mask", mask)
        else:
            binding = tensors.binding = tensors.binding or self._bound(tensors)
        run_bound(self._session, binding)
        return tensors.result()

    def _bound(self, tensors: SpeculatorTensors) -> ort.IOBinding:
        binding = self._session.io_binding()
        tensors.bind_to(binding)
        return binding

    def _block_pass(
        self,
        block: BlockPart,
        cache: HostCache,
        first_slot: int,
        last: Sequence[int],
        states: Sequence[Float32Array],
        num_drafts: int,
    ) -> SpeculatorResult:
        """last: token of each text. Texts with fewer states are padded with rows that nothing sees."""
        num_texts, num_context, num_block = len(last), max(map(len, states)), num_drafts + (not block.tells_next)
        tensors = self._tensors_of((num_texts, num_context, num_block, num_drafts))
        inputs, starts = tensors.inputs, cache.lengths[first_slot : first_slot + num_texts]
        inputs["input_ids"][:, 0] = last
        for b, (start, own) in enumerate(zip(starts, states, strict=True)):
            inputs["target_states"][b, : len(own)], inputs["target_states"][b, len(own) :] = own, own[-1]
            inputs["position_ids"][b, :num_context] = start + np.arange(num_context)
            inputs["position_ids"][b, num_context:] = start + len(own) + np.arange(num_block)
        binding = self._attention_binding(cache, first_slot, starts, num_context + num_block, tensors)
        layers: list[tuple[str, bool, int | None]] = [("tree_mask", block.is_causal, None)]
        if block.window is not None:
            layers.append(("tree_mask_sliding", block.is_window_causal, block.window))
        for name, is_causal, window in layers:
            mask = _block_mask(starts, [len(own) for own in states], num_block, is_causal, window)
            binding.bind_cpu_input(name, mask)
        run_bound(self._session, binding)
        return tensors.result()

    def _attention_binding(
        self, cache: HostCache, first_slot: int, write_pos: Sequence[int], num_rows: int, tensors: SpeculatorTensors
    ) -> ort.IOBinding:
        """With what layers read besides masks: so many rows of the cache from where they begin, and room for them."""
        cache.reserve(cache.num_slots, max(write_pos) + num_rows)
        cache.note_written(first_slot, [position + num_rows for position in write_pos])
        tensors.inputs["write_pos"][:] = write_pos
        binding = self._bindings.of(cache, first_slot, len(write_pos))
        tensors.bind_to(binding)
        return binding

    def _tree_masks(self, steps: Sequence[TreeStep], starts: Sequence[int], inputs: Values) -> Float32Array:
        """What nodes see, float32 (B, 1, N, M); their positions become inputs."""
        num_trees, num_nodes = inputs["input_ids"].shape
        num_visible = max(start + step.num_scored for start, step in zip(starts, steps, strict=True)) + num_nodes
        mask: Float32Array = np.full((num_trees, 1, num_nodes, num_visible), MASKED, np.float32)
        for b, (step, start) in enumerate(zip(steps, starts, strict=True)):
            size, first = len(step.tree), step.num_scored
            nodes = np.minimum(np.arange(first, first + num_nodes), size - 1)
            ancestors, depths = step.tree.ancestors_and_depths()
            inputs["position_ids"][b] = start + depths[nodes]
            mask[b, 0, :, :start] = 0.0
            mask[b, 0, :, start : start + size][ancestors[nodes]] = 0.0
        return mask

    def _borrowing(
        self, cache: HostCache, first_slot: int, tensors: SpeculatorTensors, lent: LentPart
    ) -> ort.IOBinding:
        """With rows of the target, all of which each node sees, from the position behind them."""
        num_trees, num_nodes = tensors.inputs["input_ids"].shape
        lengths = np.array(cache.lengths[first_slot : first_slot + num_trees])[:, None, None, None]
        tensors.inputs["position_ids"][:] = lengths[:, :, 0, 0]
        rows = np.arange(lengths.max())
        masks = {"tree_mask": rows >= lengths}
        if lent.window is not None:
            masks["tree_mask_sliding"] = masks["tree_mask"] | (rows < lengths - lent.window)
        binding = self._bindings.of(cache, first_slot, num_trees)
        tensors.bind_to(binding)
        for name, is_hidden in masks.items():
            mask: Float32Array = np.where(is_hidden, np.float32(MASKED), np.float32(0)).repeat(num_nodes, axis=2)
            binding.bind_cpu_input(name, mask)
        return binding

    def _tensors_of(self, sizes: Sizes) -> SpeculatorTensors:
        if sizes in self._tensors:
            return self._tensors[sizes]
        make = SpeculatorTensors.of_nodes if self.part.block is None else SpeculatorTensors.of_blocks
        tensors = make(sizes, self.part, self.state_size)
        if sizes[1] + sizes[2] <= _KEPT_WIDTH:
            if len(self._tensors) == _MAX_KEPT:
                self._tensors.clear()
            self._tensors[sizes] = tensors
        return tensors


def _block_mask(
    starts: Sequence[int], num_context: Sequence[int], num_block: int, is_causal: bool, window: int | None
) -> Float32Array:
    """What rows see, float32 (B, 1, C + N, M): of a block, all tokens before it and the block, as far as a window goes.

    starts: rows of each text before the pass. num_context: tokens of each that it adds. Their own rows see nothing but
    themselves, as nobody reads what they find.
    """
    width = max(num_context)
    num_rows = width + num_block
    mask: Float32Array = np.full((len(starts), 1, num_rows, max(starts) + num_rows), MASKED, np.float32)
    for b, (start, number) in enumerate(zip(starts, num_context, strict=True)):
        context, block = np.arange(start + number), start + number + np.arange(num_block)
        for positions, place in ((context, 0), (block, start + width)):
            ahead = positions[None] - block[:, None]
            seen = np.abs(ahead) < (window or np.inf)
            seen &= (ahead <= 0) | (not is_causal)
            mask[b, 0, width:, place : place + len(positions)][seen] = 0.0
        own = np.arange(width)
        mask[b, 0, own, start + own] = 0.0
    return mask


def _kept(manifest: Manifest, part: SpeculatorPart) -> Manifest:
    """What caches ask of a manifest, of the rows that passes read."""
    if part.lent is not None:
        numbers, cached = range(manifest.num_layers), manifest.cached_layers
        lends = [number in part.lent.layers for number in numbers]
        return replace(manifest, layers=tuple(cached[i] if lends[i] else Layer.none() for i in numbers))
    return replace(
        manifest,
        num_layers=part.num_layers,
        num_heads=part.num_heads,
        num_kv_heads=part.num_kv_heads,
        head_dim=part.head_dim,
        kv_dtype="float32",
        layers=(),
    )
