"""Acceptance of a speculator's chains by the target, on held-out answers, token by token."""

from typing import NamedTuple

import torch

from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.chain_loss import chain_reads
from reader_edge_export.speculators.training.lessons import DEPTH, Lessons

_MAX_STEPS = 100  # of rows, which are enough for two digits
_FEW = 4
_AT_ONCE = 256  # rows of logits, which may be of a large vocabulary


class DepthAcceptance(NamedTuple):
    """Of the places where a chain's earlier tokens were right, the shares at which the next one was: the best guess
    (top1), or one of the best four (top4).
    """

    num_places: int
    top1: float
    top4: float


def measure_depths(
    module: SpeculatorModule, lessons: Lessons, scale: torch.Tensor, is_half: bool = False
) -> list[DepthAcceptance]:
    """Of the first, the second and so on to the last token of chains. lessons: held out. scale: see `ChainLoss`."""
    hits = torch.zeros(DEPTH, 3)
    for step in range(min(lessons.steps_an_epoch, _MAX_STEPS)):
        rows = lessons.at(step)
        ids, is_heard = rows.ids.to(scale.device), rows.is_heard.to(scale.device)
        places = torch.arange(rows.states.shape[1], device=scale.device)
        states = rows.states.to(scale.device).float() / scale
        is_going_on = torch.ones(ids.shape[0], len(places), dtype=torch.bool, device=scale.device)
        with torch.no_grad(), torch.autocast(scale.device.type, torch.bfloat16, enabled=is_half):
            for depth, (told, read) in enumerate(chain_reads(module, states, ids, places)):
                # The last place has nothing behind it.
                is_known = is_going_on & is_heard[:, told] & (told + 1 < ids.shape[1])
                following = ids[:, (told + 1).clamp_max(ids.shape[1] - 1)][is_known]
                is_chosen = _best(module, read[is_known]) == following[:, None]
                hits[depth] += torch.tensor([len(following), is_chosen[:, 0].sum(), is_chosen.any(-1).sum()])
                is_going_on = is_known.masked_scatter(is_known, is_chosen[:, 0])
    return [
        DepthAcceptance(int(count), top1 / max(count, 1), top4 / max(count, 1)) for count, top1, top4 in hits.tolist()
    ]


def _best(module: SpeculatorModule, read: torch.Tensor) -> torch.Tensor:
    """The target's ids (n, _FEW) that a network likes best, of what its logit head reads (n, E)."""
    best = torch.cat([module.lm_head(some).topk(_FEW, -1).indices for some in read.split(_AT_ONCE)])
    return best if module.target_ids is None else module.target_ids[best]
