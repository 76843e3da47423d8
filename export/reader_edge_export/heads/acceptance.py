"""Acceptance of a head's guesses by the target, on held-out answers."""

from dataclasses import dataclass

import numpy as np

from reader_edge_export.heads.examples import Examples
from reader_edge_runtime.drafting.sources.head_file import NUM_GUESSES, HeadModel

_BATCH = 64
_FEW = 4


@dataclass(frozen=True, slots=True)
class HeadAcceptance:
    """Shares of places at which the target's choice was the best guess (top1), or one of the best four (top4).

    second: of the places where the token before was one of those guessed on from.
    """

    num_places: int
    first_top1: float
    first_top4: float
    second_top1: float
    second_top4: float


def measure_acceptance(head: HeadModel, examples: Examples) -> HeadAcceptance:
    """examples: held out; their `top` begins with the target's choice."""
    hits = np.zeros(4)
    num_second = 0
    for start in range(0, len(examples), _BATCH):
        places = slice(start, start + _BATCH)
        states = examples.states[places].float().numpy()
        said = head.guess(states, examples.pending[places].numpy())
        chosen, following = examples.guess[places].numpy(), examples.next_top[places, 0].numpy()
        is_chosen = said.numbers[:, :_FEW] == chosen[:, None]
        hits[:2] += is_chosen[:, 0].sum(), is_chosen.sum()
        is_known = is_chosen[:, :NUM_GUESSES].any(1) & (examples.next_share[places].sum(1).numpy() > 0)
        branch = is_chosen[:, :NUM_GUESSES].argmax(1)[is_known]
        is_next = said.next_numbers[is_known, branch, :_FEW] == following[is_known][:, None]
        hits[2:] += is_next[:, 0].sum(), is_next.sum()
        num_second += int(is_known.sum())
    first, second = max(len(examples), 1), max(num_second, 1)
    return HeadAcceptance(len(examples), *(hits / [first, first, second, second]).tolist())
