"""Drafts from the series' own past: what followed where it went as it goes now."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Float64Array, Int64Array
from reader_edge_runtime.series.outlook import Gaussian
from reader_edge_runtime.series.paths import PatchDrafts, Paths
from reader_edge_runtime.series.prompt import Prompt

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
        return Gaussian(mean, paths.outlook.binding.scale)

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
