"""Compares a speculator's graph with its module over a text and a small tree, and its best tokens with the target's."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.speculators.lent_rows import cached_rows
from reader_edge_export.speculators.speculator_module import SpeculatorModule, TextStates
from reader_edge_export.speculators.text_attention import seen_rows
from reader_edge_runtime.arrays import Array, Float32Array
from reader_edge_runtime.errors import ExportError, ParityError
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session
from reader_edge_runtime.package.manifest import MASKED
from reader_edge_runtime.package.package_parts import (
    SPECULATOR_AGREEMENT,
    SPECULATOR_GRAPH_NAME,
    BlockPart,
    SpeculatorPart,
)

Ids = npt.NDArray[np.int64]

NUM_TOKENS = 128  # of a held-out text
MAX_RELATIVE_ERROR = 1e-4  # of fp32: see `checks.parity`
_PARENTS = (-1, -1, 0, 0, 1, 2)  # of a tree behind the text's last node, which is -1
_DEPTHS = ((0, 2), (2, 5), (5, 6))  # its nodes from and to, each depth in a pass of its own


class PassInputs(NamedTuple):
    """Of a pass. token_ids, positions: (N,). seen: bool (N, M), which of all nodes so far each one sees.

    target_states: (N1, J * E_target), own_states: (N2, E), of which one has no rows. Of a block there are no own
    states, token_ids alone are of the N rows of the block, and positions are (N1 + N,); what is seen follows from them.
    """

    token_ids: Ids
    positions: Ids
    seen: npt.NDArray[np.bool_]
    target_states: Float32Array
    own_states: Float32Array


class PassOutput(NamedTuple):
    """What a pass says: next_states (N, E), top_logits and top_ids (N, K), log_sum_exp (N,), pair_logits (N, K, K).

    What a format has none of is a zero.
    """

    next_states: Float32Array
    top_logits: Float32Array
    top_ids: Ids
    log_sum_exp: Float32Array
    pair_logits: Float32Array


class SpeculatorRunner(Protocol):
    """Runs passes of one text, each behind all earlier ones."""

    def run(self, nodes: PassInputs) -> PassOutput: ...


class ModuleRunner:
    """The module, whose weights are there."""

    def __init__(self, module: SpeculatorModule, text: TextStates, top_k: int) -> None:
        self._module = module
        self._top_k = top_k
        self._attention = module.text_attention(text.lent)

    def run(self, nodes: PassInputs) -> PassOutput:
        token_ids, positions, seen, *states = map(torch.from_numpy, nodes)
        self._attention.begin_pass(len(nodes.target_states), seen)
        with torch.no_grad():
            given = token_ids[None], positions[None], *(each[None] for each in states)
            output = self._module(*given, self._attention)
            logits = self._module.logits(output.read)
            every = torch.arange(logits.shape[1])[None]
            pairs = self._module.pair_outputs(logits, output.read, every, token_ids[None])
        values, best = logits[0].topk(self._top_k)
        pair_logits = pairs["pair_logits"][0] if pairs else torch.zeros(1, 1)
        found = output.next_states[0], values, self._module.in_target(best), logits[0].logsumexp(-1), pair_logits
        return PassOutput(*(each.detach().numpy() for each in found))


class GraphRunner:
    """The graph in a package's folder, on ONNX Runtime. uses_native: with the kernels of operators of our own.

    lent: keys and values of the target as its cache has them, by the names of inputs.
    """

    def __init__(
        self,
        folder: Path,
        part: SpeculatorPart,
        num_rows: int,
        uses_native: bool = True,
        lent: Mapping[str, Array] | None = None,
    ) -> None:
        """num_rows: nodes of all passes."""
        library = native_library() if uses_native else None
        self._session = open_session(folder / SPECULATOR_GRAPH_NAME, 0, library)
        self._num_rows, self._block = 0, part.block
        shape = 1, part.num_kv_heads, num_rows, part.head_dim
        names = [f"past_{kind}.{index}" for index in range(part.num_layers) for kind in ("key", "value")]
        self._kept = {name: np.zeros(shape, np.float32) for name in names}
        self._lent, self._window = lent or {}, None if part.lent is None else part.lent.window

    def run(self, nodes: PassInputs) -> PassOutput:
        fed = {
            "input_ids": nodes.token_ids[None],
            "position_ids": nodes.positions[None],
            "write_pos": np.array([self._num_rows]),
            "logit_rows": np.arange(len(nodes.token_ids))[None],
            "target_states": nodes.target_states[None],
            **self._kept,
            **self._lent,
        }
        if self._block is None:
            fed |= {"tree_mask": _mask(nodes.seen), "own_states": nodes.own_states[None]}
        else:
            num_rows = len(nodes.positions)
            masks = {"tree_mask": (self._block.is_causal, 0)}
            if self._block.window is not None:
                masks["tree_mask_sliding"] = self._block.is_window_causal, self._block.window
            fed |= {name: _mask(seen_rows(self._num_rows + num_rows, num_rows, *each)) for name, each in masks.items()}
        if self._window is not None:
            places = np.arange(nodes.seen.shape[1]) >= nodes.seen.sum(-1, keepdims=True) - self._window
            fed["tree_mask_sliding"] = _mask(nodes.seen & places)
        names = [output.name for output in self._session.get_outputs()]
        found = dict(zip(names, self._session.run(names, fed), strict=True))
        self._num_rows += len(nodes.token_ids if self._block is None else nodes.target_states)
        self._kept = {name: found[name.replace("past", "present")] for name in self._kept}
        none = np.zeros((1, 1, 1), np.float32)
        return PassOutput(*(found.get(name, none)[0] for name in PassOutput._fields))


def _mask(seen: npt.ArrayLike) -> Float32Array:
    return np.where(seen, np.float32(0), np.float32(MASKED))[None, None]


def check_speculator(
    folder: Path, part: SpeculatorPart, source: SourceModel, text: TextStates, is_exact: bool, kv_dtype: str = "float32"
) -> dict[str, float]:
    """Figures for the manifest: how far states and logits of the graph stray from those of the module, over the largest
    of them; the share of nodes with the same best token; how often the best token is the target's own choice.

    text: held out, of at least two tokens. kv_dtype: of keys and values that the target lends. Raises ParityError where
    `is_exact` and the graph is not the module, or it says what is no number; ExportError where the module does.
    """
    module = source.skeleton
    assert isinstance(module, SpeculatorModule)
    num_rows = len(text.token_ids) + (len(_PARENTS) if part.block is None else part.block.size)
    graph = GraphRunner(folder, part, num_rows, lent=cached_rows(text.lent, kv_dtype))
    runners = graph, ModuleRunner(module, text, part.top_k)
    with source.filled([module]):
        found, expected = (_run(runner, text, part) for runner in runners)
    if not all(np.isfinite(each).all() for guesses in expected for each in guesses):
        raise ExportError(
            "What the speculator computes is too large for 32-bit numbers: its weights are damaged; fetch it again."
        )
    error = float(np.max([_error(one, other) for one, other in zip(found, expected, strict=True)]))
    if not error <= (MAX_RELATIVE_ERROR if is_exact else np.finfo(np.float32).max):
        raise ParityError(f"The speculator's graph strays by {error:.2g} from its module: please report it.")
    best, wanted = (np.concatenate([each.top_ids[:, 0] for each in guesses]) for guesses in (found, expected))
    chosen = text.best[1:].numpy()
    firsts = best[: len(chosen)]
    if part.block is not None:
        places = _places(text, part.block)
        chosen = text.best[places].numpy()
        firsts = np.array([each.top_ids[part.block.size - part.block.max_drafts, 0] for each in found])
    return {
        "speculator_error": error,
        "speculator_agreement": float((best == wanted).mean()),
        SPECULATOR_AGREEMENT: float((firsts == chosen).mean()),
    }


def _run(runner: SpeculatorRunner, text: TextStates, part: SpeculatorPart) -> list[PassOutput]:
    none = np.zeros((0, part.hidden_size), np.float32)
    return _run_tree(runner, text, none) if part.block is None else _run_blocks(runner, text, part.block, none)


def _run_tree(runner: SpeculatorRunner, text: TextStates, none: Float32Array) -> list[PassOutput]:
    """The text in one pass, then a tree of its first tokens, a depth a pass. none: no state of its own."""
    ids, states = np.array(text.token_ids), text.states[0].numpy()
    num_scored = len(ids) - 1
    first = PassInputs(ids[1:], np.arange(1, len(ids)), np.tri(num_scored, dtype=bool), states[:-1], none)
    guesses = [runner.run(first)]
    own: list[Float32Array] = []  # next states of the tree's nodes
    seen = np.zeros((len(_PARENTS), num_scored + len(_PARENTS)), bool)
    seen[:, :num_scored] = True
    for depth, (start, stop) in enumerate(_DEPTHS):
        for node in range(start, stop):
            if _PARENTS[node] >= 0:
                seen[node] |= seen[_PARENTS[node]]
            seen[node, num_scored + node] = True
        parents = [
            guesses[0].next_states[-1] if _PARENTS[node] < 0 else own[_PARENTS[node]] for node in range(start, stop)
        ]
        positions = np.full(stop - start, len(ids) + depth)
        visible = seen[start:stop, : num_scored + stop]
        if text.lent:  # rows of the text alone, from behind it
            positions, visible = np.full(stop - start, num_scored), visible[:, :num_scored]
        nodes = PassInputs(np.resize(ids, stop)[start:], positions, visible, states[:0], np.stack(parents))
        guesses.append(runner.run(nodes))
        own.extend(guesses[-1].next_states)
    return guesses


def _places(text: TextStates, block: BlockPart) -> list[int]:
    """Tokens of a text behind which blocks are compared."""
    return list(range(1, len(text.token_ids), block.size))


def _run_blocks(runner: SpeculatorRunner, text: TextStates, block: BlockPart, none: Float32Array) -> list[PassOutput]:
    """Blocks, each over the text up to its place, of which the one before has left its own part; some are cut short."""
    ids, states, start = text.token_ids, text.states[0].numpy(), 0
    nothing, guesses = np.zeros((0, 0), bool), []
    for number, place in enumerate(_places(text, block)):
        size = block.size if number % 3 else 2
        rows = np.array([ids[place], *[block.mask_token_id] * (size - 1)])
        guesses.append(runner.run(PassInputs(rows, np.arange(start, place + size), nothing, states[start:place], none)))
        start = place
    return guesses


def _error(found: PassOutput, expected: PassOutput) -> float:
    """The largest difference of what a pass says, over the largest number of its kind; equal logits may come in another
    order, and tokens that differ are not compared behind others.
    """
    pairs = [(getattr(found, name), getattr(expected, name)) for name in ("next_states", "top_logits", "log_sum_exp")]
    if expected.pair_logits.ndim == 3:
        is_same = (found.top_ids == expected.top_ids).all(-1)
        is_same[1:] &= is_same[:-1]
        pairs.append((found.pair_logits[is_same], expected.pair_logits[is_same]))
    return float(
        np.max([np.abs(one - other).max(initial=0) / max(1.0, np.abs(other).max(initial=0)) for one, other in pairs])
    )
