"""A speculator run pass by pass over one text: its module, and the graph that was written of it."""

from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_export.speculators.dense_attention import DenseAttention
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session
from reader_edge_runtime.package.manifest import MASKED
from reader_edge_runtime.package.speculator_part import SPECULATOR_GRAPH_NAME, SpeculatorPart

Ids = npt.NDArray[np.int64]


class Nodes(NamedTuple):
    """Of a pass. token_ids, positions: (N,). seen: bool (N, M), which of all nodes so far each one sees.

    target_states: (N1, J * E_target), own_states: (N2, E), of which one has no rows.
    """

    token_ids: Ids
    positions: Ids
    seen: npt.NDArray[np.bool_]
    target_states: Float32Array
    own_states: Float32Array


class Guesses(NamedTuple):
    """What a pass says: next_states (N, E), top_logits and top_ids (N, K), log_sum_exp (N,)."""

    next_states: Float32Array
    top_logits: Float32Array
    top_ids: Ids
    log_sum_exp: Float32Array


class SpeculatorRunner(Protocol):
    """Runs passes of one text, each behind all earlier ones."""

    def run(self, nodes: Nodes) -> Guesses: ...


class ModuleRunner:
    """The module, whose weights are there."""

    def __init__(self, module: SpeculatorModule, top_k: int) -> None:
        self._module = module
        self._top_k = top_k
        self._attention = DenseAttention()

    def run(self, nodes: Nodes) -> Guesses:
        token_ids, positions, self._attention.seen, *states = map(torch.from_numpy, nodes)
        with torch.no_grad():
            heard = self._module(token_ids[None], positions[None], *(each[None] for each in states), self._attention)
            logits = self._module.lm_head(heard.read)[0]
        values, best = logits.topk(self._top_k)
        best = best if self._module.target_ids is None else self._module.target_ids[best]
        found = (heard.next_states[0], values, best, logits.logsumexp(-1))
        return Guesses(*(each.numpy() for each in found))


class GraphRunner:
    """The graph in a package's folder, on ONNX Runtime. uses_native: with the kernels of operators of our own."""

    def __init__(self, folder: Path, part: SpeculatorPart, num_rows: int, uses_native: bool = True) -> None:
        """num_rows: nodes of all passes."""
        library = native_library() if uses_native else None
        self._session = open_session(folder / SPECULATOR_GRAPH_NAME, 0, library)
        self._num_rows = 0
        shape = 1, part.num_kv_heads, num_rows, part.head_dim
        names = [f"past_{kind}.{index}" for index in range(part.num_layers) for kind in ("key", "value")]
        self._kept = {name: np.zeros(shape, np.float32) for name in names}

    def run(self, nodes: Nodes) -> Guesses:
        fed = {
            "input_ids": nodes.token_ids[None],
            "position_ids": nodes.positions[None],
            "tree_mask": np.where(nodes.seen, np.float32(0), np.float32(MASKED))[None, None],
            "write_pos": np.array([self._num_rows]),
            "logit_rows": np.arange(len(nodes.token_ids))[None],
            "target_states": nodes.target_states[None],
            "own_states": nodes.own_states[None],
            **self._kept,
        }
        names = [output.name for output in self._session.get_outputs()]
        found = dict(zip(names, self._session.run(names, fed), strict=True))
        self._num_rows += len(nodes.token_ids)
        self._kept = {name: found[name.replace("past", "present")] for name in self._kept}
        return Guesses(*(found[name][0] for name in Guesses._fields))
