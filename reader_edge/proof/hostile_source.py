"""A source of drafts that means ill: what it says must change no token, and what cannot be a token must be refused."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.sources.source import DraftSource

_MAX_PROPOSED = 24


class HostileSource(DraftSource):
    """Random trees of random tokens, siblings named twice and more, with claims from unlikely to sure.

    token_ids: the ids it draws from; outside the vocabulary they must end in an error that names this source. The same
    seed gives the same trees.
    """

    name = "hostile"

    def __init__(self, token_ids: range, seed: int = 0) -> None:
        self._token_ids = token_ids
        self._random = np.random.Generator(np.random.Philox(seed))

    def begin(self, context: RequestContext) -> RequestDrafter:
        """It does not care about the text."""
        return RequestDrafter(context)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree]:
        """A tree for each request."""
        return [self._tree(draft_request.request.token_ids[-1]) for draft_request in draft_requests]

    def _tree(self, root: int) -> DraftTree:
        """Few distinct tokens, so that siblings repeat and some trees are chains."""
        num = int(self._random.integers(1, _MAX_PROPOSED + 1))
        few = self._random.choice(self._token_ids, size=4).tolist()
        parents = [int(self._random.integers(-1, i)) for i in range(num)]
        token_ids = [few[i] for i in self._random.integers(4, size=num)]
        tree = DraftTree.root(root)
        for token_id, parent, share in zip(token_ids, parents, self._random.random(num).tolist(), strict=True):
            tree.add(token_id, 1 + parent, self.name, share * tree.values[1 + parent])
        return tree
