"""A drafter that makes verification work hard: it knows the answer and hides it among wrong branches."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.errors import ReaderEdgeError

_MAX_NODES = 40
_MAX_RIGHT = 12


class StressDrafter(Drafter):
    """Random trees that hold 0 to 12 tokens of the plain answer's continuation, among random siblings and dead ends.

    So accepted paths are long, their KV rows lie apart and must be moved, and every tree also holds rejections.
    answers: token ids of prompts, and those that plain decoding gives, in one way or several. The same seed gives the
    same trees.
    """

    num_harvested_rows = 3  # so that a prompt's end is read at more than one row

    def __init__(
        self, answers: Sequence[tuple[tuple[int, ...], Sequence[int]]], vocab_size: int, seed: int = 0
    ) -> None:
        self._answers = answers
        self._vocab_size = vocab_size
        self._random = np.random.Generator(np.random.Philox(seed))

    def begin(self, context: RequestContext) -> "StressRequest":
        prompt = tuple(context.token_ids)
        return StressRequest(context, [answer for asked, answer in self._answers if asked == prompt])

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        return [
            self._tree(cast(StressRequest, draft_request.request), draft_request.max_nodes, draft_request.max_depth)
            for draft_request in draft_requests
        ]

    def _tree(self, request: "StressRequest", max_nodes: int, max_depth: int) -> DraftTree:
        num_right = min(int(self._random.integers(_MAX_RIGHT + 1)), max_depth)
        right = request.following(num_right)
        tree = DraftTree.root(request.token_ids[-1])
        depths = [0]
        last_right = 0
        for _ in range(min(max_nodes, _MAX_NODES) - 1):
            if right and self._random.random() < 0.4:
                last_right = _child(tree, depths, last_right, right.pop(0), "right")
                continue
            parent = int(self._random.integers(len(tree)))
            if depths[parent] < max_depth:
                _child(tree, depths, parent, int(self._random.integers(self._vocab_size)), "wrong")
        return tree


class StressRequest(RequestDrafter):
    """One request of a StressDrafter. answers: what plain decoding may give."""

    def __init__(self, context: RequestContext, answers: Sequence[Sequence[int]]) -> None:
        super().__init__(context)
        self._answers = answers

    def following(self, num_tokens: int) -> list[int]:
        """The next tokens of a plain answer that begins as this one does."""
        said = list(self.token_ids[self.num_prompt_tokens :])
        known = (answer for answer in self._answers if list(answer[: len(said)]) == said)
        return list(next(known, ())[len(said) : len(said) + num_tokens])


def _child(tree: DraftTree, depths: list[int], parent: int, token_id: int, source: str) -> int:
    """The child of `parent` that bears the token, added where there is none: siblings must differ."""
    known = tree.child(parent, token_id)
    if known >= 0:
        return known
    depths.append(depths[parent] + 1)
    return tree.add(token_id, parent, source)
