"""Prompt lookup replayed on recorded answers: how wide its passes would have been."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.runtimes import Lookup
from reader_edge.bench.replay import RecordedRequest


@dataclass(slots=True)
class Replay:
    """What drafting would have done: passes by width, the pending token included, and tokens they emitted."""

    passes_by_width: Counter[int] = field(default_factory=Counter)
    num_tokens: int = 0

    @property
    def acceptance_length(self) -> float:
        return self.num_tokens / max(1, self.passes_by_width.total())


class Index:
    """Where each n-gram of a growing text occurred, first or last, with at least one token behind it."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._sizes = range(lookup.max_ngram, lookup.min_ngram - 1, -1)
        self._continuations: dict[tuple[int, ...], int] = {}
        self._text: list[int] = []

    def extend(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            position = len(self._text)
            for size in self._sizes:
                if size <= position:
                    ngram = tuple(self._text[position - size : position])
                    if self._lookup.takes_last or ngram not in self._continuations:
                        self._continuations[ngram] = position
            self._text.append(token_id)

    def draft(self) -> list[int]:
        """What followed the longest known end of the text; nothing where no end is known."""
        for size in self._sizes:
            position = self._continuations.get(tuple(self._text[-size:]))
            if position is not None:
                return self._text[position : position + self._lookup.num_tokens]
        return []


def replay_lookup(requests: Sequence[RecordedRequest], lookup: Lookup) -> Replay:
    """Replay recorded answers; a draft is accepted as far as it agrees, and the pass adds one token of its own."""
    result = Replay()
    for request in requests:
        index = Index(lookup)
        for prompt, output in request.turns:
            index.extend(prompt)
            position = 0
            while position < len(output):
                draft = index.draft()[: len(output) - position - 1]
                num_accepted = next((i for i, t in enumerate(draft) if t != output[position + i]), len(draft))
                index.extend(output[position : position + num_accepted + 1])
                position += num_accepted + 1
                result.passes_by_width[1 + len(draft)] += 1
            result.num_tokens += len(output)
    return result
