"""A planner that verifies what would not pay, so that a proof sees every width and every source's drafts."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree


class AnyWidth(Planner):
    """Draws the width of each pass at random, 2 to as many nodes as were drafted; the same seed gives the same widths.

    Nothing rests, and no plain step is put between.
    """

    is_plain_due = False

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.max_drafted = self.times.max_width
        self._random = np.random.Generator(np.random.Philox(seed))

    def choose(
        self, requests: Sequence[Request], drafts: Sequence[DraftTree | None], past: int
    ) -> tuple[int, list[bool]]:
        """The width N of the next pass; every draft counts as worth its time."""
        widest = max(len(draft) for draft in drafts if draft is not None)
        return int(self._random.integers(2, widest + 1)) if widest > 1 else 1, [True] * len(drafts)
