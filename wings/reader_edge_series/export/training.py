"""Training of the forecasting model, and of a small one distilled from it that drafts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from reader_edge_export.progress import Progress
from reader_edge_export.speculators.training.training_loop import TrainingPlan, trained
from reader_edge_runtime.arrays import Float32Array, Float64Array
from reader_edge_series.export.learned_parts import COMING
from reader_edge_series.export.patch_module import PatchConfig, PatchModule
from reader_edge_series.patch_distribution import MAX_LOG_SCALE, MIN_LOG_SCALE, num_parameters
from reader_edge_series.prompt import Scaling

Tensor = torch.Tensor

_DRAFTS = 0.5  # weight of what the further patches lose


class Parts(NamedTuple):
    """As in `PatchDistribution`: means and logarithms of standard deviations (B, N, F, P), gains (B, N, 2F - 2, P)."""

    means: Tensor
    log_scales: Tensor
    gains: Tensor

    @classmethod
    def of(cls, logits: Tensor, num_patches: int) -> "Parts":
        groups = logits.unflatten(-1, (num_parameters(num_patches), -1))
        means, log_scales, gains = groups.split((num_patches, num_patches, 2 * num_patches - 2), dim=2)
        return cls(means, log_scales.clamp(MIN_LOG_SCALE, MAX_LOG_SCALE), gains)


def likelihood(logits: Tensor, patches: Tensor, prompts: Tensor, num_patches: int) -> Tensor:
    """The mean of what coming values cost, negative logarithms of their densities, and of what drafts stray."""
    parts = Parts.of(logits, num_patches)
    counted = _counted(patches, prompts)
    mean, log_scale = parts.means[:, :-1, 0], parts.log_scales[:, :-1, 0]
    costs = log_scale + 0.5 * ((patches[:, 1:] - mean) / log_scale.exp()) ** 2
    loss = costs[counted[:, :-1]].mean()
    for number in range(1, num_patches):
        length = patches.shape[1] - number
        strayed = patches[:, number : number + length] - parts.means[:, :length, number - 1].detach()
        last, average = parts.gains[:, :length, 2 * number - 2], parts.gains[:, :length, 2 * number - 1]
        draft = parts.means[:, :length, number] + last * strayed[..., -1:] + average * strayed.mean(-1, keepdim=True)
        wanted = parts.means[:, number:, 0].detach(), parts.log_scales[:, number:, 0].detach()
        apart = _divergence(*wanted, draft, parts.log_scales[:, :length, number])
        loss = loss + _DRAFTS / (num_patches - 1) * apart[counted[:, :length]].mean()
    return loss


def distilled(logits: Tensor, wanted: Tensor, prompts: Tensor, num_patches: int) -> Tensor:
    """How far the next patches of a small model (of one patch) stray from those of a large one, of F patches."""
    own, model = Parts.of(logits, 1), Parts.of(wanted, num_patches)
    apart = _divergence(model.means[:, :, 0], model.log_scales[:, :, 0], own.means[:, :, 0], own.log_scales[:, :, 0])
    return apart[_counted(logits, prompts)].mean()


def _counted(rows: Tensor, prompts: Tensor) -> Tensor:
    return torch.arange(rows.shape[1])[None] >= prompts[:, None] - 1


def _divergence(mean: Tensor, log_scale: Tensor, other_mean: Tensor, other_log_scale: Tensor) -> Tensor:
    """Of Gaussians, Kullback and Leibler's, value by value."""
    ratio = (2 * (log_scale - other_log_scale)).exp()
    return 0.5 * (ratio + ((mean - other_mean) / other_log_scale.exp()) ** 2 - 1) - (log_scale - other_log_scale)


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
    series: Sequence[Float64Array], options: SeriesTrainingOptions, folder: Path, progress: Progress
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
        return likelihood(module.score(patches), patches, prompts, options.num_patches)

    def copy(step: int) -> torch.Tensor:
        patches, prompts = windows.batch(options.num_steps + step)
        with torch.no_grad():
            wanted = module.score(patches)
        return distilled(small.score(patches), wanted, prompts, options.num_patches)

    digest = sha256(repr(replace(options, minutes=0.0)).encode())
    for values in series:
        digest.update(values.tobytes())
    for name, network, loss, num_steps in (
        ("training the model", module, learn, options.num_steps),
        ("training the small model", small, copy, options.draft_steps),
    ):
        digest.update(name.encode())
        plan = TrainingPlan(num_steps, 60 * options.minutes, digest.digest(), folder / f"{name}.bin")
        with progress.enter(name):
            trained(network, loss, plan, progress.update)
        network.train(False)
        for weights in network.state_dict().values():  # which the small model learns from
            digest.update(weights.numpy().tobytes())
    return module, small
