"""Sample paths of a forecast while they grow, and what drafts of their next patches read of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Float64Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_series.patch_distribution import Gaussian, PatchDistribution
from reader_edge_series.patch_target import PatchTarget
from reader_edge_series.prompt import Prompt


@dataclass(slots=True)
class Paths:
    """B paths. patches: float64 (B, T, P), of which the first counts[b] are taken. last: the last of each, (B, P).

    distribution: from which that was drawn. limits: of the values of each, (2, B, 1, 1), least and largest.
    nodes: int64 (B, T), of chains behind each.
    """

    prompts: Sequence[Prompt]
    patches: Float64Array
    counts: Int64Array
    last: Float64Array
    distribution: PatchDistribution
    limits: Float64Array
    nodes: Int64Array

    @classmethod
    def begun(cls, prompts: Sequence[Prompt], capacity: int, distribution: PatchDistribution) -> "Paths":
        """Without a patch yet, with room for so many. distribution: behind the prompts."""
        num_paths = [prompt.num_paths for prompt in prompts]
        patches = np.zeros((sum(num_paths), capacity, distribution.groups.shape[-1]))
        limits = np.repeat([prompt.limits for prompt in prompts], num_paths, axis=0).T[:, :, None, None]
        nodes = np.tile(np.arange(capacity), (len(patches), 1))
        return cls(prompts, patches, np.zeros(len(patches), np.int64), patches[:, 0], distribution, limits, nodes)

    def within(self, drawn: Float64Array) -> Float64Array:
        """Patches (B, N, P) that were drawn, as they are taken and read: within the limits."""
        taken: Float64Array = np.minimum(np.maximum(drawn, self.limits[0]), self.limits[1])
        return taken

    def take(self, drawn: Float64Array, kept: Int64Array, last: Any, distribution: PatchDistribution) -> None:
        """The first kept[b] of patches (B, N, P), drawn from `distribution` (B, N). last: their ends' index."""
        taken, num_nodes = self.within(drawn), drawn.shape[1]
        rows = np.arange(len(taken))[:, None]
        self.patches[rows, self.counts[:, None] + self.nodes[:, :num_nodes]] = taken
        self.counts += kept
        self.last, self.distribution = taken[last], distribution.where(last)


class PatchDrafts(ABC):
    """Proposes patches. Whatever it says, forecasts keep their law; how near it comes to the model decides on speed.

    most: patches in a row at most. cost: of a draft beside its verification, about, in undrafted steps.
    """

    most: int
    cost: float

    @abstractmethod
    def begin(self, prompts: Sequence[Prompt], num_patches: int) -> None:
        """New paths begin, of so many patches each: those of each prompt in turn. Their order stays."""

    @abstractmethod
    def propose(self, paths: Paths, number: int, before: Float64Array) -> Gaussian:
        """What draft `number` of this step is drawn from, 1 for the first, which begins the step.

        before: (B, P), the patch before it: the last of the paths, or the draft that was drawn.
        """


def prefilled(target: PatchTarget, prompts: Sequence[Prompt], num_patches: int) -> tuple[Cache, Float32Array]:
    """A cache with a slot for each path that has read its prompt, and what the model says behind it, (B, G * P).

    num_patches: that will come. Raises ConfigError where memory is short, or ProviderError.
    """
    num_paths = sum(prompt.num_paths for prompt in prompts)
    cache = target.new_cache(num_paths, max(len(prompt.patches) for prompt in prompts) + num_patches)
    parameters, slot = [], 0
    for prompt in prompts:
        length = len(prompt.patches)
        scored = target.forward(cache, slot, prompt.patches[None], [[length - 1]])
        cache.commit(slot, range(length))
        for other in range(slot + 1, slot + prompt.num_paths):
            cache.copy(slot, other, length)
        parameters.append(np.repeat(scored[:, 0], prompt.num_paths, axis=0))
        slot += prompt.num_paths
    return cache, np.concatenate(parameters)
