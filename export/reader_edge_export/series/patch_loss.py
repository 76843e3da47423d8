"""What a patch decoder is trained by: how likely the next patches were, and how near its drafts come to what it says.

Only nodes count from which a forecast may start: those whose window was scaled by no later patch.
"""

from typing import NamedTuple

import torch

from reader_edge_runtime.series.outlook import MAX_LOG_SCALE, MIN_LOG_SCALE, num_parameters

Tensor = torch.Tensor

_DRAFTS = 0.5  # weight of what the further patches lose


class Parts(NamedTuple):
    """As in `Outlook`: means and logarithms of standard deviations (B, N, F, P), gains (B, N, 2F - 2, P)."""

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
    said = Parts.of(logits, num_patches)
    counted = _counted(patches, prompts)
    mean, log_scale = said.means[:, :-1, 0], said.log_scales[:, :-1, 0]
    costs = log_scale + 0.5 * ((patches[:, 1:] - mean) / log_scale.exp()) ** 2
    loss = costs[counted[:, :-1]].mean()
    for number in range(1, num_patches):
        length = patches.shape[1] - number
        strayed = patches[:, number : number + length] - said.means[:, :length, number - 1].detach()
        last, average = said.gains[:, :length, 2 * number - 2], said.gains[:, :length, 2 * number - 1]
        draft = said.means[:, :length, number] + last * strayed[..., -1:] + average * strayed.mean(-1, keepdim=True)
        wanted = said.means[:, number:, 0].detach(), said.log_scales[:, number:, 0].detach()
        apart = _divergence(*wanted, draft, said.log_scales[:, :length, number])
        loss = loss + _DRAFTS / (num_patches - 1) * apart[counted[:, :length]].mean()
    return loss


def distilled(logits: Tensor, wanted: Tensor, prompts: Tensor, num_patches: int) -> Tensor:
    """How far the next patches of a small model (of one patch) stray from those of a large one, of F patches."""
    own, said = Parts.of(logits, 1), Parts.of(wanted, num_patches)
    apart = _divergence(said.means[:, :, 0], said.log_scales[:, :, 0], own.means[:, :, 0], own.log_scales[:, :, 0])
    return apart[_counted(logits, prompts)].mean()


def _counted(rows: Tensor, prompts: Tensor) -> Tensor:
    return torch.arange(rows.shape[1])[None] >= prompts[:, None] - 1


def _divergence(mean: Tensor, log_scale: Tensor, other_mean: Tensor, other_log_scale: Tensor) -> Tensor:
    """Of Gaussians, Kullback and Leibler's, value by value."""
    ratio = (2 * (log_scale - other_log_scale)).exp()
    return 0.5 * (ratio + ((mean - other_mean) / other_log_scale.exp()) ** 2 - 1) - (log_scale - other_log_scale)
