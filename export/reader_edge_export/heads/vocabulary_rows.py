"""The rows of a target's logit head, found from what it says: any package will do, however its weights are stored."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import Pass, Target

_NODES_A_PASS = 128
_RIDGE = 1e-6  # of the mean square, for targets whose states fill no more than a part of their space
_PLACES_A_NUMBER = 2  # that are heard for each unknown of a row


class Heard(NamedTuple):
    """What a target said at N places of texts, each from its beginning.

    hidden_states: float32 (N, E). logits: float32 (N, ids). layer_states: float32 (J, N, E), J 0 where not wanted.
    positions: int64 (N,), of each in its text.
    """

    hidden_states: Float32Array
    logits: Float32Array
    layer_states: Float32Array
    positions: npt.NDArray[np.int64]


def logit_head_rows(target: Target, texts: Sequence[npt.NDArray[np.int32]], ids: npt.NDArray[np.int32]) -> Float32Array:
    """Rows (ids, E) with which hidden states make logits."""
    assert target.manifest.hidden_size is not None
    heard = hear(target, texts, ids, target.manifest.hidden_size)
    return least_squares(heard.hidden_states, heard.logits)


def least_squares(known: Float32Array, wanted: Float32Array) -> Float32Array:
    """The matrix (O, I) that makes what is wanted (N, O) of what is known (N, I), beside a constant that is dropped."""
    known = np.concatenate([known.astype(np.float64), np.ones((len(known), 1))], 1)
    squares = known.T @ known
    squares += _RIDGE * np.trace(squares) / len(squares) * np.eye(len(squares))
    found = np.linalg.solve(squares, known.T @ wanted)
    return np.ascontiguousarray(found[:-1].T, np.float32)


def hear(
    target: Target,
    texts: Sequence[npt.NDArray[np.int32]],
    ids: npt.NDArray[np.int32],
    num_unknown: int,
    wants_layer_states: bool = False,
) -> Heard:
    """Have a target score texts until as many places are heard as so many unknown numbers need, if there are."""
    cache = target.new_cache(1, _NODES_A_PASS)
    left = _PLACES_A_NUMBER * (num_unknown + 1)
    heard: list[Heard] = []
    for text in texts:
        tree = DraftTree.chain(text[:_NODES_A_PASS].tolist())
        wanted = Pass(0, [tree], [range(len(tree))], wants_logits=True, wants_hidden_states=True)
        said = target.forward(cache, wanted._replace(wants_layer_states=wants_layer_states))
        assert said.hidden_states is not None
        states = said.hidden_states[0].copy()
        layer_states = np.zeros((0, *states.shape), np.float32)
        if said.layer_states is not None:
            layer_states = said.layer_states[:, 0].copy()
        heard.append(Heard(states, said.wanted_logits[0][:, ids], layer_states, np.arange(len(tree))))
        left -= len(tree)
        if left <= 0:
            break
    hidden_states, logits, layers, positions = zip(*heard, strict=True)
    joined = np.concatenate(hidden_states), np.concatenate(logits), np.concatenate(layers, 1)
    return Heard(*joined, np.concatenate(positions))
