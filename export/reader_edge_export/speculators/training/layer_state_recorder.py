"""Answers with states of the target's layers, those of the prompt's end included: what a speculator learns from."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_export.heads.state_recorder import StateRecorder, StateRequest
from reader_edge_runtime.draft_tree import ScoredTree
from reader_edge_runtime.drafting.drafter import RequestContext

MAX_CONTEXT = 127  # tokens of a prompt, besides its last, whose states are kept

_LARGEST = float(np.finfo(np.float16).max)


class LayerStateRecorder(StateRecorder):
    """Records answers whose states are J * E numbers a token, of the last tokens of `prompt_ids` too.

    columns: of the states that the target reports, those to keep, in the order in which they are joined.
    """

    wants_hidden_states = False
    wants_layer_states = True

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__()
        self.columns = list(columns)

    def _new_request(self, number: int, context: RequestContext) -> StateRequest:
        return LayerStateRequest(self, number, context)


class LayerStateRequest(StateRequest):
    """What the target thought of one request's tokens, its prompt's last ones included."""

    def __init__(self, recorder: LayerStateRecorder, number: int, context: RequestContext) -> None:
        super().__init__(recorder, number, context)
        self._columns = recorder.columns
        self._end = 0  # position behind the states that are kept

    def _keep_states(self, scored: ScoredTree, is_heard: bool) -> None:
        if scored.layer_states is None:
            return
        if scored.root != self._end:  # what an earlier request left in the cache is not scored again
            self._states.clear()
        self._end = scored.root + len(scored.tree)
        if self._end <= self._first - MAX_CONTEXT:
            return
        states = scored.layer_states[:, self._columns].reshape(len(scored.tree), -1)
        self._states.append(states.clip(-_LARGEST, _LARGEST).astype(np.float16))

    def _kept_states(self, count: int) -> npt.NDArray[np.float16]:
        states = np.concatenate(self._states)
        start = self._end - len(states)
        return states[max(self._first - MAX_CONTEXT - start, 0) : self._first + count - start]
