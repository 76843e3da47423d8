"""A planner that verifies what would not pay, in widths drawn at random."""

import math
from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.decoding.planning.planner import Draft, Planner, StepPlan
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree


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
