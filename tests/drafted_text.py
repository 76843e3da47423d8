"""A text that goes on as a test says, with a drafter that drafts for it."""

from collections.abc import Sequence

from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext
from reader_edge_runtime.errors import ReaderEdgeError


class DraftedText:
    """One request without a decoder."""

    def __init__(self, drafter: Drafter, prompt: Sequence[int]) -> None:
        self.token_ids = list(prompt)
        self.drafter = drafter
        self.request = drafter.begin(RequestContext(self.token_ids))

    def draft(self, max_nodes: int, max_depth: int) -> DraftTree:
        [tree] = self.drafter.draft([DraftRequest(self.request, max_nodes, max_depth)])
        if isinstance(tree, ReaderEdgeError):
            raise tree
        return tree

    def go_on(self, token_ids: Sequence[int], scored: ScoredTree | None = None) -> None:
        self.token_ids += token_ids
        self.request.observe(scored)

    def finish(self) -> None:
        self.request.finish()
