"""Requests of a replay that draft from what was proposed, by a rule."""

from collections.abc import Mapping, Sequence

from benchmarks.fusion.proposer import Proposed
from benchmarks.fusion.rule import Rule, fused
from reader_edge.bench.recording import RecordedTurn
from reader_edge.bench.replay.heard_answer import ReplayedAnswer
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter

Record = Mapping[int, Proposed]  # of a turn, by length of the text


class EagleRequest:
    """Drafts from a proposer alone, by EAGLE-2's rule."""

    def __init__(self, record: Record, turn: RecordedTurn) -> None:
        self._record, self._length = record, len(turn.prompt)

    @property
    def proposed(self) -> Proposed:
        return self._record[self._length]

    def draft(self, max_nodes: int) -> DraftTree:
        return self.proposed.best(max_nodes - 1)

    def extend(self, turn: RecordedTurn) -> None:
        """No turn follows another here: each was proposed for alone."""
        raise ValueError("a request of several turns has no recorded proposals")

    def observe(self, token_ids: Sequence[int]) -> None:
        self._length += len(token_ids)

    def finish(self) -> None:
        """Each request is drafted for afresh, so that nothing is kept."""


class RasdRequest(EagleRequest):
    """Joins a proposer's tree with a drafter's by RASD's rule."""

    def __init__(self, record: Record, drafter: RetrievalDrafter, rule: Rule, turn: RecordedTurn) -> None:
        super().__init__(record, turn)
        self._retrieval, self._rule = ReplayedAnswer(drafter, turn), rule

    def draft(self, max_nodes: int) -> DraftTree:
        retrieved, first = self._retrieval.draft(max_nodes), self.proposed.first
        likely = dict(zip(first.token_ids, first.probabilities, strict=True))
        return fused(super().draft(max_nodes), retrieved, likely, self._rule, max_nodes - 1)

    def observe(self, token_ids: Sequence[int]) -> None:
        super().observe(token_ids)
        self._retrieval.observe(token_ids)
