"""A node budget that verifies what would not pay, so that a proof sees every width and every source's drafts."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.decoding.planning.draft_guard import DraftGuard
from reader_edge_runtime.decoding.planning.node_budget import NodeBudget
from reader_edge_runtime.measuring.verify_cost import MAX_WIDTH


class AnyWidth(NodeBudget):
    """Draws the width of each pass at random, 2 to as many nodes as were drafted; the same seed gives the same widths.

    Nothing rests, and no plain step is put between.
    """

    is_plain_due = False

    def __init__(self, seed: int = 0) -> None:
        super().__init__(MAX_WIDTH)
        self.max_drafted = MAX_WIDTH
        self._random = np.random.Generator(np.random.Philox(seed))

    def choose(self, values: Sequence[Sequence[float]], guards: Sequence[DraftGuard | None], past: int) -> int:
        """The width N of the next pass; 1 where nothing was drafted."""
        widest = max(map(len, values))
        return int(self._random.integers(2, widest + 1)) if widest > 1 else 1
