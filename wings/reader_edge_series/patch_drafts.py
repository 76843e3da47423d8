"""Where drafted patches come from: the model itself, a small model, or the series' own past."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Float64Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_series.patch_distribution import Gaussian, PatchDistribution
from reader_edge_series.patch_target import PatchTarget
from reader_edge_series.paths import PatchDrafts, Paths, prefilled
from reader_edge_series.prompt import Prompt
from reader_edge_series.series_manifest import MOST_DRAFTS


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
            self._scales = paths.distribution.scales(1, self.most + 1)
        return Gaussian(paths.distribution.further(number, before), self._scales[:, number - 1])


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
            return self._next(before[:, None], np.ones(len(before), np.int64))
        for slot, length in enumerate((self._starts + paths.counts - 1).tolist()):
            self._cache.cut(slot, length)
        known = np.array(self._cache.lengths) - self._starts
        sizes = paths.counts - known
        places = np.minimum(known[:, None] + np.arange(sizes.max()), paths.counts[:, None] - 1)
        return self._next(paths.patches[np.arange(len(sizes))[:, None], places], sizes)

    def _next(self, patches: Float64Array, sizes: Int64Array) -> Gaussian:
        """How the next patch is distributed behind the first sizes[b] of patches (B, N, P)."""
        parameters = self._target.forward(self._cache, 0, patches.astype(np.float32), sizes[:, None] - 1)
        for slot, size in enumerate(sizes.tolist()):
            self._cache.commit(slot, range(size))
        return PatchDistribution.of(parameters[:, 0], self._target.sizes.num_patches).binding


_MOST = 4  # patches in a row
_ALIKE = 3  # patches that are compared
_NEIGHBOURS = 8  # places that are averaged over
_LONGEST = 8192  # values of the past that are looked through, the last ones
_KEPT = 0.7  # of the difference in level between now and then, a patch later


class Analogs(PatchDrafts):
    """The mean is that of the nearest places, moved to the path's level; deviations are those of its last patch."""

    most, cost = _MOST, 0.1

    def __init__(self, patch_size: int) -> None:
        self._patch_size = patch_size
        self._pasts: list[Float64Array] = []
        self._windows: list[Float64Array] = []  # of each prompt, (n, w) views, each with something behind it
        self._ends: list[Int64Array] = []  # of each prompt, (paths, neighbours): where what followed begins
        self._apart = np.zeros(0)  # of each path, how far it lies above its neighbours

    def begin(self, prompts: Sequence[Prompt], num_patches: int) -> None:
        size = _ALIKE * self._patch_size
        self._pasts = [prompt.past[-_LONGEST:] for prompt in prompts]
        windows = (np.lib.stride_tricks.sliding_window_view(past, size) for past in self._pasts)
        self._windows = [each[: max(len(each) - _MOST * self._patch_size, 1)] for each in windows]

    def propose(self, paths: Paths, number: int, before: Float64Array) -> Gaussian:
        if number == 1:
            self._find(paths)
        steps = np.arange(self._patch_size) + (number - 1) * self._patch_size
        followed = [
            past[np.minimum(ends[:, :, None] + steps, len(past) - 1)].mean(1)
            for past, ends in zip(self._pasts, self._ends, strict=True)
        ]
        mean = np.concatenate(followed) + self._apart[:, None] * _KEPT ** ((steps + 1) / self._patch_size)
        return Gaussian(mean, paths.distribution.binding.scale)

    def _find(self, paths: Paths) -> None:
        size, first, apart = _ALIKE * self._patch_size, 0, []
        self._ends = []
        for prompt, past, windows in zip(paths.prompts, self._pasts, self._windows, strict=True):
            own = range(first, first + prompt.num_paths)
            recent = np.stack([self._recent(prompt, paths.patches[b, : paths.counts[b]]) for b in own])
            distances = -2 * recent @ windows.T + (windows**2).sum(1)
            nearest = np.argpartition(distances, min(_NEIGHBOURS, len(windows)) - 1)[:, :_NEIGHBOURS]
            self._ends.append(nearest + size)
            apart.append(recent[:, -1] - past[nearest + size - 1].mean(1))
            first += prompt.num_paths
        self._apart = np.concatenate(apart)

    def _recent(self, prompt: Prompt, drawn: Float64Array) -> Float64Array:
        """The last values of a path."""
        size = _ALIKE * self._patch_size
        values: Float64Array = drawn[-_ALIKE:].reshape(-1)
        return np.concatenate([prompt.past[len(prompt.past) - size + len(values) :], values])
