"""Training of a patch decoder, and of a small one that learns to say what it says."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reader_edge_export.heads.training import TrainingPlan, trained
from reader_edge_export.series.learned_parts import COMING
from reader_edge_export.series.patch_loss import distilled, likelihood
from reader_edge_export.series.patch_module import PatchConfig, PatchModule
from reader_edge_export.stages import Stages
from reader_edge_runtime.arrays import Float32Array, Float64Array
from reader_edge_runtime.series.scaling import Scaling

_MIXED = 0.3  # share of windows that are two, added up
_BATCH = 16


@dataclass(frozen=True, slots=True)
class SeriesTrainingOptions:
    """Sizes and steps of the model and, of the draft, those of the small model.

    num_patches: coming patches that the model tells of. minutes: after which each of the two has learned enough.
    """

    num_layers: int = 4
    hidden_size: int = 128
    num_patches: int = 4
    num_steps: int = 4000
    draft_layers: int = 1
    draft_hidden_size: int = 64
    draft_steps: int = 1334
    minutes: float = 60.0


class Windows:
    """Windows of several series by chance, scaled by what their first patches hold; those of a step are the same."""

    def __init__(self, series: Sequence[Float64Array], config: Any) -> None:
        self._series, self._patch_size = series, config.patch_size
        self._prompts = config.min_prompt, config.max_prompt + 1
        self._size = config.max_prompt + COMING

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Patches (B, N, P), and of each window how many first ones scaled it (B,)."""
        random = np.random.default_rng(step)
        lengths = random.integers(*self._prompts, _BATCH)
        windows = np.stack([self._window(int(length), random) for length in lengths])
        return torch.from_numpy(windows), torch.from_numpy(lengths)

    def _window(self, prompt: int, random: np.random.Generator) -> Float32Array:
        values = self._scaled(prompt, random)
        if random.random() < _MIXED:
            share = random.random()
            values = share * values + (1 - share) * self._scaled(prompt, random)
        return values.reshape(self._size, self._patch_size).astype(np.float32)

    def _scaled(self, prompt: int, random: np.random.Generator) -> Float64Array:
        series = self._series[int(random.integers(len(self._series)))]
        size = self._size * self._patch_size
        start = int(random.integers(len(series) - size + 1))
        values = series[start : start + size]
        return Scaling.of(values[: prompt * self._patch_size]).scaled(values)


def train_patches(
    series: Sequence[Float64Array], options: SeriesTrainingOptions, folder: Path, stages: Stages
) -> tuple[PatchModule, PatchModule]:
    """The model and the small one that drafts for it, learned from series of LEAST_VALUES or more.

    folder: keeps progress, from which the same training resumes, also with other minutes. Raises ExportError.
    """
    torch.manual_seed(0)
    module = PatchModule(PatchConfig.of_sizes(options.num_layers, options.hidden_size, options.num_patches))
    small = PatchModule(PatchConfig.of_sizes(options.draft_layers, options.draft_hidden_size, 1))
    windows = Windows(series, module.config)

    def learn(step: int) -> torch.Tensor:
        patches, prompts = windows.batch(step)
        return likelihood(module.said(patches), patches, prompts, options.num_patches)

    def copy(step: int) -> torch.Tensor:
        patches, prompts = windows.batch(options.num_steps + step)
        with torch.no_grad():
            said = module.said(patches)
        return distilled(small.said(patches), said, prompts, options.num_patches)

    digest = sha256(repr(replace(options, minutes=0.0)).encode())
    for values in series:
        digest.update(values.tobytes())
    for name, network, loss, num_steps in (
        ("training the model", module, learn, options.num_steps),
        ("training the small model", small, copy, options.draft_steps),
    ):
        digest.update(name.encode())
        plan = TrainingPlan(num_steps, 60 * options.minutes, digest.digest(), folder / f"{name}.bin")
        with stages.enter(name):
            trained(network, loss, plan, stages.progress)
        network.train(False)
        for weights in network.state_dict().values():  # which the small model learns from
            digest.update(weights.numpy().tobytes())
    return module, small
