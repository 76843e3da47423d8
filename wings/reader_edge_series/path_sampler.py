"""Samples forecast paths patch by patch: one pass scores drafts, a coupling keeps the distribution of undrafted ones.

Patches are drawn and coupled as the model's Gaussians have them. Taken and read they are within their paths' limits,
drafted or not: far from all that a model has learned from, one wide distribution leads to the next, without an end.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Float64Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_series import coupling
from reader_edge_series.draft_length import DraftLength, FixedCosts
from reader_edge_series.patch_distribution import Gaussian, PatchDistribution
from reader_edge_series.patch_target import PatchTarget
from reader_edge_series.paths import PatchDrafts, Paths, prefilled
from reader_edge_series.prompt import Prompt

_FIRST: Any = np.s_[:, 0]  # of all paths, their first node


@dataclass(slots=True)
class ForecastStats:
    """num_passes: of the model, prompts not counted. num_drafted, num_accepted: patches, over all paths."""

    num_passes: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0


class PathSampler:
    """Samples paths of a model. drafts: None for none. Undrafted steps are those of no drafts: there is no other code.

    is_timed: whether what steps take decides on how much is drafted; else a rule does, so that the same random numbers
    give the same paths.

    lengths: how many patches to draft, by the number of paths in a pass; learned as it goes.
    """

    def __init__(self, target: PatchTarget, drafts: PatchDrafts | None, is_timed: bool = True) -> None:
        self._target, self._drafts = target, drafts
        self._is_timed = is_timed
        self._lengths: dict[int, DraftLength] = {}

    def sample(
        self, prompts: Sequence[Prompt], num_patches: int, random: np.random.Generator, stats: ForecastStats
    ) -> Float64Array:
        """Patches (B, num_patches, P), scaled, of each prompt's paths in turn. stats: are added to."""
        most = 0 if self._drafts is None else self._drafts.most
        cache, parameters = prefilled(self._target, prompts, num_patches + most + 1)
        num_paths = len(parameters)
        distribution, is_begun = self._distribution(parameters[:, None]), False
        paths, length = Paths.begun(prompts, num_patches + most + 1, distribution), self._length(num_paths)
        paths.take(coupling.drawn(distribution.binding, random), np.ones(num_paths, np.int64), _FIRST, distribution)
        while (num_left := num_patches - int(paths.counts.min())) > 0:
            num_drafts = length.choose(num_left, is_begun) if length else 0
            if num_drafts and length and not is_begun:
                length.begun(self._begin(prompts, num_patches))
                is_begun = True
            start = time.perf_counter()
            numbers = self._step(paths, cache, num_drafts, num_patches, random)
            stats.num_passes += 1
            if num_drafts:
                stats.num_drafted += num_drafts * len(numbers)
                stats.num_accepted += int(numbers.sum())
            if length:
                length.settle(num_drafts, numbers, time.perf_counter() - start)
        return paths.patches[:, :num_patches]

    def _length(self, num_paths: int) -> DraftLength | None:
        """What chooses for so many paths at the beginning of a forecast; None where nothing drafts."""
        if self._drafts is None:
            return None
        if num_paths not in self._lengths:
            costs = None
            if not self._is_timed:
                row_bytes = self._target.sizes.kv_row_bytes
                costs = FixedCosts(num_paths, row_bytes, self._drafts.cost)
            self._lengths[num_paths] = DraftLength(self._drafts.most, num_paths, costs)
        self._lengths[num_paths].begin()
        return self._lengths[num_paths]

    def _begin(self, prompts: Sequence[Prompt], num_patches: int) -> float:
        """Have drafts begin; returns the seconds that it took."""
        assert self._drafts is not None
        start = time.perf_counter()
        self._drafts.begin(prompts, num_patches)
        return time.perf_counter() - start

    def _step(
        self, paths: Paths, cache: Cache, num_drafts: int, num_patches: int, random: np.random.Generator
    ) -> Int64Array:
        """One pass; returns how many drafts were accepted, of each path that was not whole yet."""
        chain, drawn, drafts = self._drafted(paths, num_drafts, random)
        distribution = self._distribution(self._target.forward(cache, 0, chain, paths.nodes[:, : num_drafts + 1]))
        bound = distribution.binding
        drawn[:, num_drafts] = coupling.drawn(bound.where(np.s_[:, num_drafts]), random)
        numbers, last = np.zeros(len(drawn), np.int64), _FIRST
        if num_drafts:
            numbers = self._coupled(bound, drafts, drawn, random)
            last = np.arange(len(drawn)), numbers
        kept = np.minimum(numbers + 1, num_patches - paths.counts)
        for slot, size in enumerate(kept.tolist()):
            cache.commit(slot, range(size))
        paths.take(drawn, kept, last, distribution)
        return numbers[kept > 0]

    def _drafted(
        self, paths: Paths, num_drafts: int, random: np.random.Generator
    ) -> tuple[Float32Array, Float64Array, Gaussian]:
        """What a pass reads, the last patch of each path and its drafts, (B, K + 1, P).

        And drafts as they were drawn, (B, K + 1, P) with room for what comes behind them, from what Gaussian (B, K, P).
        """
        before = paths.last
        num_paths, size = before.shape
        chain = np.empty((num_paths, num_drafts + 1, size), np.float32)
        drawn, means, scales = np.empty((3, num_paths, num_drafts + 1, size))
        chain[:, 0] = before
        for number in range(num_drafts):
            assert self._drafts is not None
            draft = self._drafts.propose(paths, number + 1, before)
            means[:, number], scales[:, number] = draft
            drawn[:, number] = patches = coupling.drawn(draft, random)
            chain[:, number + 1] = before = paths.within(patches[:, None])[:, 0]
        return chain, drawn, Gaussian(means[:, :num_drafts], scales[:, :num_drafts])

    def _coupled(
        self, bound: Gaussian, drafts: Gaussian, drawn: Float64Array, random: np.random.Generator
    ) -> Int64Array:
        """How many drafts of each path count; the first that does not is replaced in `drawn`."""
        num_paths, num_drafts, _ = drafts.mean.shape
        counted, among = np.zeros((num_paths, num_drafts + 1), np.bool_), np.s_[:, :num_drafts]
        counted[among] = coupling.accepted(bound.where(among), drafts, drawn[among], random)
        numbers: Int64Array = counted.argmin(1)
        failed = np.flatnonzero(numbers < num_drafts)
        if failed.size:
            places = failed, numbers[failed]
            drawn[places] = coupling.replaced(bound.where(places), drafts.where(places), drawn[places], random)
        return numbers

    def _distribution(self, parameters: Float32Array) -> PatchDistribution:
        return PatchDistribution.of(parameters, self._target.sizes.num_patches)
