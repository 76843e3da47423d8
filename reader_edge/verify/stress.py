"""Makes verification work hard: a drafter that hides the answer, a source that means ill, and widths at random."""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from reader_edge_runtime.decoding.planning.planner import Draft, Planner, StepPlan
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.errors import ReaderEdgeError

_MAX_NODES = 40
_MAX_RIGHT = 12
_MAX_PROPOSED = 24


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
        return StressRequest(context, [answer for known_prompt, answer in self._answers if known_prompt == prompt])

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
        output = list(self.token_ids[self.num_prompt_tokens :])
        known = (answer for answer in self._answers if list(answer[: len(output)]) == output)
        return list(next(known, ())[len(output) : len(output) + num_tokens])


def _child(tree: DraftTree, depths: list[int], parent: int, token_id: int, source: str) -> int:
    """The child of `parent` that bears the token, added where there is none: siblings must differ."""
    known = tree.child(parent, token_id)
    if known >= 0:
        return known
    depths.append(depths[parent] + 1)
    return tree.add(token_id, parent, source)


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


class AnyWidth(Planner):
    """Verifies what would not pay, so that a proof sees every source's drafts; nothing backs off, no plain step is due.

    Draws the width of each tree at random, 2 to as many nodes as were drafted; the same seed gives the same widths.
    splits: have a tree that steps alone go in two passes, cut at random; of a target over links.
    """

    is_plain_due = False

    def __init__(self, seed: int = 0, splits: bool = False) -> None:
        super().__init__()
        self._splits = splits
        self.max_drafted = self.times.max_width
        self._random = np.random.Generator(np.random.Philox(seed))

    def plan(
        self, requests: Sequence[Request], past: int, room: int, draft: Draft, given_room: int | None = None
    ) -> StepPlan:
        plan = super().plan(requests, past, room, draft, given_room)
        # A second pass of one node may be padded to two.
        if not self._splits or len(requests) > 1 or not 1 < plan.width < room:
            return plan
        return plan._replace(num_first=int(self._random.integers(1, plan.width)))

    def choose(
        self, requests: Sequence[Request], drafts: Sequence[DraftTree | None], past: int
    ) -> tuple[list[int], list[float]]:
        """Nodes of each tree; every draft counts as worth its time."""
        most = [1 if draft is None else len(draft) for draft in drafts]
        return [int(self._random.integers(2, each + 1)) if each > 1 else 1 for each in most], [math.inf] * len(drafts)
