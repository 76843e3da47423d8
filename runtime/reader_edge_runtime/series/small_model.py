"""Drafts from a small model that was trained to say what the large one says: a pass of its own for each patch."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Float64Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.series.outlook import Gaussian, Outlook
from reader_edge_runtime.series.patch_target import PatchTarget
from reader_edge_runtime.series.paths import PatchDrafts, Paths, prefilled
from reader_edge_runtime.series.prompt import Prompt
from reader_edge_runtime.series.series_manifest import MOST_DRAFTS


class SmallModel(PatchDrafts):
    """Its cache has, of each path, the patches that were drawn, and drafts of the last step that may have failed."""

    most, cost = MOST_DRAFTS, 0.6

    def __init__(self, target: PatchTarget) -> None:
        self._target = target
        self._cache: Cache
        self._starts = np.zeros(0, np.int64)

    def begin(self, prompts: Sequence[Prompt], num_patches: int) -> None:
        self._cache, _ = prefilled(self._target, prompts, num_patches + MOST_DRAFTS)
        self._starts = np.array(self._cache.lengths)

    def propose(self, paths: Paths, number: int, before: Float64Array) -> Gaussian:
        if number > 1:
            return self._heard(before[:, None], np.ones(len(before), np.int64))
        for slot, length in enumerate((self._starts + paths.counts - 1).tolist()):
            self._cache.cut(slot, length)
        known = np.array(self._cache.lengths) - self._starts
        sizes = paths.counts - known
        places = np.minimum(known[:, None] + np.arange(sizes.max()), paths.counts[:, None] - 1)
        return self._heard(paths.patches[np.arange(len(sizes))[:, None], places], sizes)

    def _heard(self, patches: Float64Array, sizes: Int64Array) -> Gaussian:
        """What it says behind patches (B, N, P), of which so many first ones of each path count."""
        parameters = self._target.forward(self._cache, 0, patches.astype(np.float32), sizes[:, None] - 1)
        for slot, size in enumerate(sizes.tolist()):
            self._cache.commit(slot, range(size))
        return Outlook.of(parameters[:, 0], self._target.sizes.num_patches).binding
