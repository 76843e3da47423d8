"""A text that goes on as a test says, with a drafter that drafts for it; proposals written as probabilities."""

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


Guess = tuple[Sequence[int], Sequence[int], Sequence[float]]  # tokens, parents (-1: the text), shares of the parent


def proposed(root: int, guess: Guess) -> DraftTree:
    """The tree below a text's last token, be it none that may be."""
    token_ids, parents, shares = guess
    values = [1.0]
    for parent, share in zip(parents, shares, strict=False):
        values.append(share * values[parent + 1] if -1 <= parent < len(values) - 1 else share)
    return DraftTree([root, *token_ids], [-1, *(parent + 1 for parent in parents)], [""] * len(values), values)
