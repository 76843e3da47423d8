"""Drafts from the model itself: each node tells of several coming patches, of which the first alone binds."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.series.outlook import Gaussian
from reader_edge_runtime.series.paths import PatchDrafts, Paths
from reader_edge_runtime.series.prompt import Prompt
from reader_edge_runtime.series.series_manifest import MOST_DRAFTS


class OwnPatches(PatchDrafts):
    """They cost nothing: what they are drawn from came with the pass before."""

    cost = 0.0

    def __init__(self, num_patches: int) -> None:
        """num_patches: that a node of the model tells of."""
        self.most = min(num_patches - 1, MOST_DRAFTS)
        self._scales = np.zeros(0)  # of all patches that a step may draft

    def begin(self, prompts: Sequence[Prompt], num_patches: int) -> None:
        """All that it needs comes with the paths."""

    def propose(self, paths: Paths, number: int, before: Float64Array) -> Gaussian:
        if number == 1:
            self._scales = paths.outlook.scales(1, self.most + 1)
        return Gaussian(paths.outlook.further(number, before), self._scales[:, number - 1])
