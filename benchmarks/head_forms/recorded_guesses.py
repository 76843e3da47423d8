"""A source of drafts in the replay of a recorded answer, whose every guess is known before."""

from collections.abc import Mapping, Sequence

import numpy as np

from reader_edge.bench.recording import RecordedTurn
from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftWish, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.sources.head_file import Float32Array
from reader_edge_runtime.drafting.sources.source import Source


def recorded_answer(turn: RecordedTurn, states: Float32Array) -> RecordedAnswer:
    """A turn as heads learn from it. states: float32 (R, E), of the recorded positions."""
    assert turn.successors is not None
    rows = np.flatnonzero(turn.successors.positions >= len(turn.prompt) - 1)
    assert (turn.successors.positions[rows] == len(turn.prompt) - 1 + np.arange(len(rows))).all()
    token_ids = np.array([*turn.prompt[-1:], *turn.output[: len(rows)]], np.int32)
    top_ids, top_logits = turn.successors.top_ids[rows].astype(np.int32), turn.successors.top_logits[rows]
    prompt_ids = np.array(turn.prompt[:-1], np.int32)
    return RecordedAnswer(prompt_ids, token_ids, states[rows].astype(np.float16), top_ids, top_logits)


class RecordedGuesses(Source):
    """Knows what a form guesses at each position of the text that is replayed.

    at: by the position of the token before the pending one.
    """

    name = "head"

    def __init__(self) -> None:
        self.at: Mapping[int, DraftTree] = {}

    def begin(self, context: RequestContext) -> RequestDrafter:
        return RequestDrafter(context)

    def propose(self, wishes: Sequence[DraftWish]) -> list[DraftTree | None]:
        return [self.at.get(len(wish.request.token_ids) - 2) for wish in wishes]
