"""Answers with states of the target's layers, those of the prompt's end included: what a speculator learns from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.errors import ReaderEdgeError

MAX_CONTEXT = 127  # tokens of a prompt, besides its last, whose states are kept

_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A prompt's last token and the answer, and the target's scores after each of these tokens but the last.

    prompt_ids: int32 (P,), the prompt's other tokens. token_ids: int32 (T,). states: float16 (C + T - 1, J * E), of the
    last C tokens of prompt_ids too. top_ids, top_logits: int32 and float32 (T - 1, K), best first.
    """

    prompt_ids: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int32]
    states: npt.NDArray[np.float16]
    top_ids: npt.NDArray[np.int32]
    top_logits: npt.NDArray[np.float32]


class StateRecorder(Drafter):
    """A drafter that drafts nothing and keeps the target's states and scores.

    columns: of the states that the target reports, those to keep, in the order in which they are joined. answers: of
    requests that ended, by their number in the order in which they began.
    """

    num_harvested_rows = 1
    wants_layer_states = True

    def __init__(self, columns: Sequence[int]) -> None:
        self.columns = list(columns)
        self.answers: dict[int, RecordedAnswer] = {}
        self._num_begun = 0

    def begin(self, context: RequestContext) -> "StateRequest":
        self._num_begun += 1
        return StateRequest(self, self._num_begun - 1, context)

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        # Roots, and not nothing: only what was drafted for is observed.
        return [DraftTree.root(draft_request.request.token_ids[-1]) for draft_request in draft_requests]


class StateRequest(RequestDrafter):
    """States and scores of one request's tokens, those of its prompt's end included."""

    def __init__(self, recorder: StateRecorder, number: int, context: RequestContext) -> None:
        super().__init__(context)
        self._recorder = recorder
        self._number = number
        self._first = self.num_prompt_tokens - 1
        self._tops: list[tuple[Int64Array, Float32Array]] = []
        self._states: list[npt.NDArray[np.float16]] = []
        self._end = 0  # position behind the states that are kept

    def observe(self, scored: ScoredTree | None) -> None:
        if scored is None:
            return
        if scored.root + scored.rows[-1] == self._first + len(self._tops):  # not earlier chunks of a prompt
            self._tops.append((scored.top_ids[-1], scored.top_logits[-1]))
        if scored.layer_states is None:
            return
        if scored.root != self._end:  # what an earlier request left in the cache is not scored again
            self._states.clear()
        self._end = scored.root + len(scored.tree)
        if self._end > self._first - MAX_CONTEXT:
            states = scored.layer_states[:, self._recorder.columns].reshape(len(scored.tree), -1)
            self._states.append(states.clip(-_LARGEST, _LARGEST).astype(np.float16))

    def finish(self) -> None:
        # The last step that max_tokens allows is not drafted for, and so not observed.
        token_ids = np.array(self.token_ids[self._first :][: len(self._tops) + 1], np.int32)
        tops = self._tops[: len(token_ids) - 1]
        if tops and self._states:
            states = np.concatenate(self._states)
            start = self._end - len(states)
            kept = states[max(self._first - MAX_CONTEXT - start, 0) : self._first + len(tops) - start]
            top_ids, top_logits = map(np.stack, zip(*tops, strict=True))
            prompt_ids = np.array(self.token_ids[: self._first], np.int32)
            self._recorder.answers[self._number] = RecordedAnswer(
                prompt_ids, token_ids, kept, top_ids.astype(np.int32), top_logits
            )
