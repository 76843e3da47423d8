"""Sample paths while they grow, and what drafts of their next patches come from."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Float64Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.series.outlook import Gaussian, Outlook
from reader_edge_runtime.series.patch_target import PatchTarget
from reader_edge_runtime.series.prompt import Prompt


@dataclass(slots=True)
class Paths:
    """B paths. patches: float64 (B, T, P), of which the first counts[b] are drawn. outlook: from which the last was."""

    prompts: Sequence[Prompt]
    patches: Float64Array
    counts: Int64Array
    outlook: Outlook

    @property
    def last(self) -> Float64Array:
        """The last patch of each, (B, P)."""
        return self.patches[np.arange(len(self.counts)), self.counts - 1]


class PatchDrafts(ABC):
    """Proposes patches. Whatever it says, forecasts keep their law; how near it comes to the model decides on speed.

    most: patches in a row at most.
    """

    most: int

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
        said = target.forward(cache, slot, prompt.patches[None], [[length - 1]])
        cache.commit(slot, range(length))
        for other in range(slot + 1, slot + prompt.num_paths):
            cache.copy(slot, other, length)
        parameters.append(np.repeat(said[:, 0], prompt.num_paths, axis=0))
        slot += prompt.num_paths
    return cache, np.concatenate(parameters)
