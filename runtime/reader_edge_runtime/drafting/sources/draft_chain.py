"""What a draft model guessed after one text: its likeliest chain, with alternatives beside each token of it."""

from collections.abc import Iterator, Sequence

from reader_edge_runtime.drafting.sources.draft_model import Successors
from reader_edge_runtime.drafting.sources.source import Proposal

_LEAST = 0.01  # probability of a path below which it is left out: no pass has room for it
_MOST_SIBLINGS = 8


class DraftChain:
    """Grows by one token, and what might stand in its place, with each pass of the draft model.

    position: of the token in the request's text that it follows. path: the probability that the model gives to its
    tokens together. vocab_size: ids below it are tokens, of draft model and target alike.
    """

    def __init__(self, position: int, vocab_size: int) -> None:
        self.position = position
        self.path = 1.0
        self._vocab_size = vocab_size
        self._nodes: list[int] = []  # of the chain, among those proposed
        self._token_ids: list[int] = []
        self._parents: list[int] = []
        self._probabilities: list[float] = []

    @property
    def depth(self) -> int:
        """Tokens of the chain."""
        return len(self._nodes)

    def grow(self, said: Successors) -> int | None:
        """Take the next tokens; returns the likeliest. None where that is none, or too unlikely: the chain ends.

        What is no probability, or no token's id, is left out with all behind it: the likeliest come first.
        """
        parent, first = self._nodes[-1] if self._nodes else -1, len(self._token_ids)
        for token_id, probability in zip(said.token_ids.tolist(), said.probabilities.tolist(), strict=True):
            is_usable = 0 <= token_id < self._vocab_size and probability <= 1 and self.path * probability >= _LEAST
            if not is_usable or len(self._token_ids) == first + _MOST_SIBLINGS:
                break
            self._token_ids.append(token_id)
            self._parents.append(parent)
            self._probabilities.append(probability)
        if len(self._token_ids) == first:
            return None
        self._nodes.append(first)
        self.path *= self._probabilities[first]
        return self._token_ids[first]

    def proposal(self) -> Proposal:
        return Proposal(self._token_ids, self._parents, self._probabilities)

    def is_hit(self, token_id: int) -> bool:
        """Whether the token that came was among the first guesses."""
        first = zip(self._token_ids, self._parents, strict=True)
        return any(guess == token_id and parent < 0 for guess, parent in first)

    def claims(self, came: Sequence[int]) -> Iterator[tuple[float, bool]]:
        """How sure the model was of each token of the chain, and whether it came, up to the first that did not."""
        for node, token_id in zip(self._nodes, came, strict=False):
            is_right = self._token_ids[node] == token_id
            yield self._probabilities[node], is_right
            if not is_right:
                return
