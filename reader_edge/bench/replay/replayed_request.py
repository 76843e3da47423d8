"""A request of the drafting core that follows a recording."""

from collections.abc import Sequence

import numpy as np

from reader_edge.bench.recording import RecordedTurn, Successors
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.core import DraftingCore

MAX_DEPTH = 32
_MAX_VOCAB_SIZE = 1 << 31  # ids are checked when a recording is read


class ReplayedRequest:
    """Learns what was said, and what the recorded model thought likely after it, where that was recorded.

    What the model thinks likely after rejected drafts, from which decoding learns too, no recording knows.
    """

    def __init__(self, core: DraftingCore, turn: RecordedTurn) -> None:
        self._core = core
        self._state = core.begin(turn.prompt)
        self._follow(turn)

    @property
    def num_bytes(self) -> int:
        return self._state.num_bytes

    def draft(self, max_nodes: int, max_depth: int = MAX_DEPTH) -> DraftTree:
        return self._state.draft(max_nodes, max_depth)

    def extend(self, turn: RecordedTurn) -> None:
        self._state.extend(turn.prompt)
        self._follow(turn)

    def observe(self, token_ids: Sequence[int]) -> None:
        self._state.observe(token_ids)
        if self._turn.successors is not None and self._core.config.is_logits_used:
            self._text += token_ids
            self._learn_successors(self._turn.successors)

    def finish(self) -> None:
        self._state.finish()

    def _follow(self, turn: RecordedTurn) -> None:
        self._turn, self._text, self._num_learned = turn, list(turn.prompt), 0

    def _learn_successors(self, successors: Successors) -> None:
        """Learn those of the tokens before the last one, which no pass has scored yet."""
        positions = successors.positions
        num_scored = int(np.searchsorted(positions, len(self._text) - 1))
        new = np.arange(self._num_learned, num_scored)
        for rows in np.split(new, np.flatnonzero(np.diff(positions[new]) != 1) + 1):
            if len(rows):
                first, last = int(positions[rows[0]]), int(positions[rows[-1]])
                chain = DraftTree.chain(self._text[first : last + 1])
                said = successors.top_ids[rows], successors.top_logits[rows]
                scored = ScoredTree(chain, range(len(rows)), first, *said, _MAX_VOCAB_SIZE)
                self._core.successors.learn(scored, self._text)
        self._num_learned = num_scored
