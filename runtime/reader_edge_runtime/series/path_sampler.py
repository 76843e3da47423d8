"""Sample paths, patch by patch: one pass scores what was drafted, a coupling keeps the law of undrafted ones."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Float64Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.series.coupling import Coupling, ExactCoupling
from reader_edge_runtime.series.draft_length import DraftLength
from reader_edge_runtime.series.outlook import Gaussian, Outlook
from reader_edge_runtime.series.patch_target import PatchTarget
from reader_edge_runtime.series.paths import PatchDrafts, Paths, prefilled
from reader_edge_runtime.series.prompt import Prompt


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

    coupling: None for the exact one, by which paths have the model's law.

    lengths: how many patches to draft, by the number of paths in a pass; learned as it goes.
    """

    def __init__(self, target: PatchTarget, drafts: PatchDrafts | None, coupling: Coupling | None = None) -> None:
        self._target, self._drafts = target, drafts
        self._coupling = coupling or ExactCoupling()
        self._lengths: dict[int, DraftLength] = {}

    def sample(
        self, prompts: Sequence[Prompt], num_patches: int, random: np.random.Generator, stats: ForecastStats
    ) -> Float64Array:
        """Patches (B, num_patches, P), scaled, of each prompt's paths in turn. stats: are added to."""
        most = 0 if self._drafts is None else self._drafts.most
        cache, parameters = prefilled(self._target, prompts, num_patches + most + 1)
        if self._drafts is not None:
            self._drafts.begin(prompts, num_patches)
        length = self._lengths.setdefault(len(parameters), DraftLength(most))
        patch_size = self._target.sizes.patch_size
        patches = np.zeros((len(parameters), num_patches + most + 1, patch_size))
        paths = Paths(prompts, patches, np.ones(len(patches), np.int64), self._outlook(parameters))
        patches[:, 0] = self._coupling.drawn(paths.outlook.binding, random)
        while paths.counts.min() < num_patches:
            start = time.perf_counter()
            num_drafts = length.choose(min(most, num_patches - int(paths.counts.min()) - 1))
            numbers = self._step(paths, cache, num_drafts, num_patches, random)
            length.settle(num_drafts, numbers.tolist(), time.perf_counter() - start)
            stats.num_passes += 1
            stats.num_drafted += num_drafts * len(numbers)
            stats.num_accepted += int(numbers.sum())
        return patches[:, :num_patches]

    def _step(
        self, paths: Paths, cache: Cache, num_drafts: int, num_patches: int, random: np.random.Generator
    ) -> Int64Array:
        """One pass; returns how many drafts were accepted, of each path that was not whole yet."""
        rows = np.arange(len(paths.counts))
        chain, drafts = self._drafted(paths, num_drafts, random)
        asked = np.broadcast_to(np.arange(num_drafts + 1), (len(rows), num_drafts + 1))
        outlook = self._outlook(self._target.forward(cache, 0, chain.astype(np.float32), asked))
        bound = outlook.binding
        counted = self._coupling.accepted(bound.where(np.s_[:, :-1]), drafts, chain[:, 1:], random)
        numbers: Int64Array = counted.cumprod(1).sum(1)
        new = np.concatenate([chain[:, 1:], np.zeros_like(chain[:, :1])], axis=1)
        new[rows, numbers] = self._coupling.drawn(bound.where((rows, numbers)), random)
        failed = np.flatnonzero(numbers < num_drafts)
        if failed.size:
            places = failed, numbers[failed]
            drawn = chain[:, 1:][places]
            new[places] = self._coupling.replaced(bound.where(places), drafts.where(places), drawn, random)
        paths.patches[rows[:, None], paths.counts[:, None] + asked] = new
        kept = np.minimum(numbers + 1, num_patches - paths.counts)
        for slot, size in enumerate(kept.tolist()):
            cache.commit(slot, range(size))
        paths.counts += kept
        paths.outlook = outlook.where((rows, np.maximum(kept - 1, 0)))
        return numbers[kept > 0]

    def _drafted(self, paths: Paths, num_drafts: int, random: np.random.Generator) -> tuple[Float64Array, Gaussian]:
        """Each path's last patch and its drafts (B, 1 + K, P), and what those were drawn from."""
        chain, drafts = [paths.last], []
        for number in range(1, num_drafts + 1):
            assert self._drafts is not None
            drafts.append(self._drafts.propose(paths, number, chain[-1]))
            chain.append(self._coupling.drawn(drafts[-1], random))
        if not drafts:
            none = np.zeros((len(chain[0]), 0, chain[0].shape[1]))
            return chain[0][:, None], Gaussian(none, none)
        means, scales = (np.stack(parts, axis=1) for parts in zip(*drafts, strict=True))
        return np.stack(chain, axis=1), Gaussian(means, scales)

    def _outlook(self, parameters: Float32Array) -> Outlook:
        return Outlook.of(parameters, self._target.sizes.num_patches)
