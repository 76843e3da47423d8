"""A source of drafts that means ill: what it says must change no token, and what cannot be a token must be refused."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.draft_tree import ScoredTree
from reader_edge_runtime.drafting.drafter import DraftWish
from reader_edge_runtime.drafting.sources.source import Arrays, Proposal

_MAX_PROPOSED = 24


class HostileSource:
    """Random trees of random tokens, siblings named twice and more, with claims from unlikely to sure.

    token_ids: the ids it draws from; outside the vocabulary they must end in an error that names this source. The same
    seed gives the same trees.
    """

    name = "hostile"
    wants_hidden_states = False

    def __init__(self, token_ids: range, seed: int = 0) -> None:
        self._token_ids = token_ids
        self._random = np.random.Generator(np.random.Philox(seed))

    def begin(self, token_ids: Sequence[int]) -> "HostileSource":
        """Itself: it does not care about the text."""
        return self

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        """A tree for each request."""
        return [self._proposal() for _ in wishes]

    def observe(self, scored: ScoredTree | None) -> None:
        """Learn nothing."""

    def finish(self) -> None:
        """Nothing is kept."""

    def state(self) -> Arrays:
        """It learns nothing."""
        return {}

    def restore(self, arrays: Arrays) -> None:
        """There is nothing to take up."""

    def _proposal(self) -> Proposal:
        """Few distinct tokens, so that siblings repeat and some trees are chains."""
        num = int(self._random.integers(1, _MAX_PROPOSED + 1))
        few = self._random.choice(self._token_ids, size=4).tolist()
        parents = [int(self._random.integers(-1, i)) for i in range(num)]
        token_ids = [few[i] for i in self._random.integers(4, size=num)]
        return Proposal(token_ids, parents, self._random.random(num).tolist())
