"""The rows of a target's logit head, found from what it says: any package will do, however its weights are stored."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import Pass, Target

_NODES_A_PASS = 128
_RIDGE = 1e-6  # of the mean square, for targets whose states fill no more than a part of their space
_STATES_A_NUMBER = 2  # hidden states that are heard for each unknown of a row


def logit_head_rows(target: Target, answers: Sequence[RecordedAnswer], ids: npt.NDArray[np.int32]) -> Float32Array:
    """Rows (ids, E) with which hidden states make logits, by least squares."""
    states, logits = zip(*_heard(target, answers, ids), strict=True)
    known = np.concatenate(states).astype(np.float64)
    known = np.concatenate([known, np.ones((len(known), 1))], 1)
    squares = known.T @ known
    squares += _RIDGE * np.trace(squares) / len(squares) * np.eye(len(squares))
    found = np.linalg.solve(squares, known.T @ np.concatenate(logits))
    return np.ascontiguousarray(found[:-1].T, np.float32)


def _heard(
    target: Target, answers: Sequence[RecordedAnswer], ids: npt.NDArray[np.int32]
) -> Iterator[tuple[Float32Array, Float32Array]]:
    """Hidden states and logits of texts, as many as are needed, if there are."""
    cache = target.new_cache(1, _NODES_A_PASS)
    left = None
    for answer in answers:
        tree = DraftTree.chain(answer.token_ids[:_NODES_A_PASS].tolist())
        said = target.forward(cache, Pass(0, [tree], [range(len(tree))], wants_logits=True, wants_hidden_states=True))
        assert said.hidden_states is not None
        left = _STATES_A_NUMBER * (said.hidden_states.shape[2] + 1) if left is None else left
        yield said.hidden_states[0].copy(), said.wanted_logits[0][:, ids]
        left -= len(tree)
        if left <= 0:
            return
