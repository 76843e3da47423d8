"""How often a form's guesses are what the target says, on texts that it did not learn from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.head_forms.form import Form
from benchmarks.head_forms.places import Places

_FEW = 4


@dataclass(frozen=True, slots=True)
class FormAcceptance:
    """By depth, where the tokens before came as guessed on from: how often the best guess was right, and one of four.

    runs: how often the best guesses were right up to this depth, all of them.
    """

    top1: tuple[float, ...]
    top4: tuple[float, ...]
    runs: tuple[float, ...]

    def by_product(self, depth: int) -> float:
        """Accepted tokens of a chain of best guesses, were each one's luck its own."""
        return float(np.cumprod(self.top1[:depth]).sum())

    def counted(self, depth: int) -> float:
        """Accepted tokens of a chain of best guesses."""
        return sum(self.runs[:depth])


@torch.no_grad()
def measure_form(form: Form, texts: Sequence[Places]) -> FormAcceptance:
    """texts: held out; places whose token has no number count as missed."""
    top1, top4, runs, counts = np.zeros((4, form.depth))
    for text in texts:
        places = Places.side_by_side([text])
        guesses = form.logits(places).topk(_FEW).indices
        chosen = places.top[:, :, : form.depth, 0]
        are_told = places.share[:, :, : form.depth].sum(-1) > 0
        are_hits = (guesses == chosen[..., None]) & (are_told & (chosen < form.sizes.ids))[..., None]
        top1 += _by_depth(are_hits[..., 0])
        top4 += _by_depth(are_hits.any(-1))
        runs += _by_depth(are_hits[..., 0].cumprod(-1))
        counts += _by_depth(are_told)
    first = counts[:1]  # a run begins everywhere
    return FormAcceptance(
        *(tuple((hits / of).tolist()) for hits, of in ((top1, counts), (top4, counts), (runs, first)))
    )


def _by_depth(values: torch.Tensor) -> np.ndarray:
    return values.flatten(0, 1).sum(0).double().numpy()
