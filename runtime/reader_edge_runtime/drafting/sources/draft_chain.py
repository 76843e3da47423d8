"""What a draft model guessed after one text: its likeliest chain, with alternatives beside each token of it."""

from collections.abc import Iterator, Sequence

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.draft_model import NextTokens

NAME = "draft model"
_LEAST = 0.01  # probability of a path below which it is left out: no pass has room for it
_MOST_SIBLINGS = 8


class DraftChain:
    """Grows by one token, and what might stand in its place, with each pass of the draft model.

    position: of the token in the request's text that it follows. tree: of its tokens and those beside them, below that
    token. path: the probability that the model gives to its tokens together. vocab_size: ids below it are tokens, of
    draft model and target alike.
    """

    def __init__(self, text: Sequence[int], vocab_size: int) -> None:
        self.position = len(text) - 1
        self.tree = DraftTree.root(text[-1])
        self.path = 1.0
        self._vocab_size = vocab_size
        self._nodes: list[int] = []  # of the chain
        self._probabilities: list[float] = []  # of each token of the chain behind the one before

    @property
    def depth(self) -> int:
        """Tokens of the chain."""
        return len(self._nodes)

    @property
    def last_probability(self) -> float:
        """What the model gives to the last token of a chain that has one, behind the one before."""
        return self._probabilities[-1]

    def grow(self, following: NextTokens) -> int | None:
        """Take the next tokens; returns the likeliest. None where that is none, or too unlikely: the chain ends.

        What is no probability, or no token's id, is left out with all behind it: the likeliest come first.
        """
        tree, parent, first = self.tree, self._nodes[-1] if self._nodes else 0, len(self.tree)
        probabilities = following.probabilities.tolist()
        for token_id, probability in zip(following.token_ids.tolist(), probabilities, strict=True):
            path = self.path * probability
            is_usable = 0 <= token_id < self._vocab_size and probability <= 1 and path >= _LEAST
            if not is_usable or len(tree) == first + _MOST_SIBLINGS:
                break
            tree.add(token_id, parent, NAME, path)
        if len(tree) == first:
            return None
        self._nodes.append(first)
        self._probabilities.append(probabilities[0])
        self.path = tree.values[first]
        return tree.token_ids[first]

    def is_hit(self, token_id: int) -> bool:
        """Whether the token that came was among the first guesses."""
        return self.tree.child(0, token_id) >= 0

    def claims(self, came: Sequence[int]) -> Iterator[tuple[float, bool]]:
        """How sure the model was of each token of the chain, and whether it came, up to the first that did not."""
        for node, probability, token_id in zip(self._nodes, self._probabilities, came, strict=False):
            is_right = self.tree.token_ids[node] == token_id
            yield probability, is_right
            if not is_right:
                return
