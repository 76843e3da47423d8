"""What a speculator is trained by: chains of its own states, each step against what the target thought there."""

from collections.abc import Iterator

import torch

from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.chain_attention import ChainAttention
from reader_edge_export.speculators.training.lessons import DEPTH, Lessons

Tensor = torch.Tensor

_LATER = 0.8  # weight of a step, of the one before
_GOING_ON = 0.5  # share of the places from which chains go on: they differ little from those beside them


def chain_reads(
    module: SpeculatorModule, states: Tensor, ids: Tensor, places: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each step of chains, the places whose tokens it was told, and what the logit head reads of them (B, n, E).

    states: (B, N, J * E), as the network joins them. ids: int64 (B, N + DEPTH). places: int64 (n,), those whose chains
    go on behind the first step, which is of all N.
    """
    chosen = torch.arange(states.shape[1], device=ids.device)
    attend = ChainAttention(len(chosen), places)
    own = module.joined(states)
    for step in range(DEPTH):
        told = chosen + step
        heard = module.step(ids[:, told], told[None], own, attend)
        yield told, heard.read
        own = heard.next_states
        if step == 0:
            own, chosen = own[:, places], places


class ChainLoss:
    """The loss of each step of training. scale: float32 (J * E,), by which states are divided.

    is_half: products are of bf16.
    """

    def __init__(self, module: SpeculatorModule, lessons: Lessons, scale: Tensor, is_half: bool) -> None:
        self._module = module
        self._lessons = lessons
        self._scale = scale
        self._is_half = is_half

    def __call__(self, step: int) -> Tensor:
        rows, device = self._lessons.at(step), self._scale.device
        num_places = rows.states.shape[1]
        order = torch.randperm(num_places, generator=torch.Generator().manual_seed(step))
        places = order[: int(num_places * _GOING_ON)].sort().values.to(device)
        ids, top, share = (each.to(device) for each in (rows.ids, rows.top, rows.share))
        states = rows.states.to(device).float() / self._scale
        loss, weight, weights = torch.zeros((), device=device), 1.0, 0.0
        with torch.autocast(device.type, torch.bfloat16, enabled=self._is_half):
            for told, read in chain_reads(self._module, states, ids, places):
                loss = loss + weight * _distance(self._module.lm_head(read), top[:, told], share[:, told])
                weights += weight
                weight *= _LATER
        return loss / weights


def _distance(logits: Tensor, top: Tensor, share: Tensor) -> Tensor:
    """Cross entropy against what the target thought, of a token that is learned. top, share: (B, n, K)."""
    beliefs = torch.log_softmax(logits.float(), -1).gather(-1, top)
    return -(share * beliefs).sum() / share.sum().clamp_min(1)
