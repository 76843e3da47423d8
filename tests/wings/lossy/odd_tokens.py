"""A constraint over small vocabularies: behind an even token comes an odd one."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree


class OnlyOddAfterEven:
    """allowed: the tokens there are at all."""

    is_over = False
    forced: Sequence[int] = ()

    def __init__(self, vocab_size: int) -> None:
        self.allowed = set(range(vocab_size))
        self._vocab_size = vocab_size
        self._last = 1

    def mask(self) -> np.ndarray:
        tokens = range(self._vocab_size)
        return np.array([token in self.allowed and (self._last % 2 == 1 or token % 2 == 1) for token in tokens])

    def advance(self, token_id: int) -> None:
        self._last = token_id

    def cut(self, tree: DraftTree, max_nodes: int) -> DraftTree:
        return tree

    def prepare(self) -> None:
        """The mask is made when it is needed."""

    def close(self) -> None:
        """Nothing is held."""
