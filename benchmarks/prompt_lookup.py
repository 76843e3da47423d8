"""Prompt lookup replayed on recorded answers: how wide its passes would have been."""

from collections.abc import Sequence

from benchmarks.runtimes import Lookup
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.bench.simulator import Simulator
from reader_edge_runtime import GenerationStats
from reader_edge_runtime.draft_tree import DraftTree


class Index:
    """Where each n-gram of a growing text occurred, first or last, with at least one token behind it."""

    def __init__(self, lookup: Lookup, token_ids: Sequence[int] = ()) -> None:
        self._lookup = lookup
        self._sizes = range(lookup.max_ngram, lookup.min_ngram - 1, -1)
        self._continuations: dict[tuple[int, ...], int] = {}
        self._text: list[int] = []
        self.observe(token_ids)

    def extend(self, turn: RecordedTurn) -> None:
        """Learn another turn's prompt."""
        self.observe(turn.prompt)

    def observe(self, token_ids: Sequence[int]) -> None:
        """Learn more of the text, prompt or answer."""
        for token_id in token_ids:
            position = len(self._text)
            for size in self._sizes:
                if size <= position:
                    ngram = tuple(self._text[position - size : position])
                    if self._lookup.takes_last or ngram not in self._continuations:
                        self._continuations[ngram] = position
            self._text.append(token_id)

    def finish(self) -> None:
        """Nothing outlives a request."""

    def draft(self) -> list[int]:
        """What followed the longest known end of the text; nothing where no end is known."""
        for size in self._sizes:
            position = self._continuations.get(tuple(self._text[-size:]))
            if position is not None:
                return self._text[position : position + self._lookup.num_tokens]
        return []


def replay_lookup(requests: Sequence[RecordedRequest], lookup: Lookup) -> GenerationStats:
    """Replay recorded answers; a draft is accepted as far as it agrees, and the pass adds one token of its own."""
    simulator = Simulator(
        lambda turn: Index(lookup, turn.prompt),
        lambda index, num_left: DraftTree.chain([0, *index.draft()[:num_left]]),
    )
    for request in requests:
        simulator.decode(request)
    return simulator.stats
