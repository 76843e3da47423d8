"""Answers with the hidden states that they were chosen from: what a head learns from, written by the target itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.errors import ReaderEdgeError


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A prompt's last token and the answer, and what the target thought after each of these tokens but the last.

    prompt_ids: int32 (P,), the prompt's other tokens. token_ids: int32 (T,). states: float16 (C + T - 1, E), of the
    last C tokens of prompt_ids too: a head reads none of these. top_ids, top_logits: int32 and float32 (T - 1, K), best
    first.
    """

    prompt_ids: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int32]
    states: npt.NDArray[np.float16]
    top_ids: npt.NDArray[np.int32]
    top_logits: npt.NDArray[np.float32]


class StateRecorder(Drafter):
    """A drafter that drafts nothing and keeps what the target thought.

    answers: of requests that ended, by their number in the order in which they began.
    """

    num_harvested_rows = 1
    wants_hidden_states = True

    def __init__(self) -> None:
        self.answers: dict[int, RecordedAnswer] = {}
        self._num_begun = 0

    def begin(self, context: RequestContext) -> "StateRequest":
        self._num_begun += 1
        return self._new_request(self._num_begun - 1, context)

    def _new_request(self, number: int, context: RequestContext) -> "StateRequest":
        return StateRequest(self, number, context)

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        # Roots, and not nothing: only what was drafted for is observed.
        return [DraftTree.root(draft_request.request.token_ids[-1]) for draft_request in draft_requests]


class StateRequest(RequestDrafter):
    """What the target thought of one request's tokens, from the last one of its prompt on."""

    def __init__(self, recorder: StateRecorder, number: int, context: RequestContext) -> None:
        super().__init__(context)
        self._recorder = recorder
        self._number = number
        self._first = self.num_prompt_tokens - 1
        self._tops: list[tuple[Int64Array, Float32Array]] = []
        self._states: list[npt.NDArray[np.float16]] = []

    def observe(self, scored: ScoredTree | None) -> None:
        if scored is None:
            return
        # Not the earlier chunks of a prompt.
        is_heard = scored.root + scored.rows[-1] == self._first + len(self._tops)
        if is_heard:
            self._tops.append((scored.top_ids[-1], scored.top_logits[-1]))
        self._keep_states(scored, is_heard)

    def finish(self) -> None:
        # The last step that max_tokens allows is not drafted for, and so not observed.
        token_ids = np.array(self.token_ids[self._first :][: len(self._tops) + 1], np.int32)
        tops = self._tops[: len(token_ids) - 1]
        if tops and self._states:
            top_ids, top_logits = map(np.stack, zip(*tops, strict=True))
            prompt_ids = np.array(self.token_ids[: self._first], np.int32)
            self._recorder.answers[self._number] = RecordedAnswer(
                prompt_ids, token_ids, self._kept_states(len(tops)), top_ids.astype(np.int32), top_logits
            )

    def _keep_states(self, scored: ScoredTree, is_heard: bool) -> None:
        """is_heard: whether its last row is the next token of the answer."""
        if is_heard and scored.hidden_states is not None:
            self._states.append(scored.hidden_states[-1:].astype(np.float16))

    def _kept_states(self, count: int) -> npt.NDArray[np.float16]:
        """Those up to so many tokens from the prompt's last one on."""
        return np.concatenate(self._states[:count])
