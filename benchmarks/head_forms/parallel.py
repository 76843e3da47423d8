"""SpecFormer's form (arXiv 2511.20340): all tokens at once, behind a causal layer over the text's hidden states.

From the last place come DEPTH slots, which see one another and share the rest, so that little belongs to one position
alone. Narrow, as wide as the MLP's step is dear.
"""

import torch
from torch import nn

from benchmarks.head_forms.form import best
from benchmarks.head_forms.places import DEPTH, Places
from benchmarks.head_forms.text_form import TextForm
from reader_edge_export.heads.head_module import HeadModule

Tensor = torch.Tensor


class ParallelForm(TextForm):
    """Its guesses know nothing of one another's choice."""

    name = "SpecFormer's"

    def __init__(self, head: HeadModule) -> None:
        super().__init__(head)
        inner, width, slot = self.sizes.inner, self.width, self.sizes.rank
        self.entering = nn.Linear(self.sizes.hidden + self.sizes.embedded, width)
        self.slots = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, inner), nn.SiLU(), nn.Linear(inner, DEPTH * slot)
        )
        self.between_norm, self.between = nn.LayerNorm(slot), nn.Linear(slot, 3 * slot)
        self.between_out = nn.Linear(slot, slot)
        self.last = nn.Sequential(nn.LayerNorm(slot), nn.Linear(slot, 2 * slot), nn.SiLU(), nn.Linear(2 * slot, slot))
        self.last_norm = nn.LayerNorm(slot)

    def logits(self, places: Places) -> Tensor:
        entered = self.enter(places.states, places.pending)
        return self._guess(entered + self.attention(*self.read(entered)))

    def forward(self, states: Tensor, pending: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        entered, queries, text = self.last_place(states, pending, keys, values)
        probabilities, numbers = best(self._guess(entered + self.attention(queries, text))[0, 0])
        return (*(each for depth in range(DEPTH) for each in (probabilities[depth, None], numbers[depth, None])),)

    def enter(self, states: Tensor, pending: Tensor) -> Tensor:
        entered: Tensor = self.entering(torch.cat([self.known(states), self.embedding[pending]], -1))
        return entered

    def _guess(self, read: Tensor) -> Tensor:
        """Logits (N, L, DEPTH, ids + 1)."""
        slots = self.slots(read).unflatten(-1, (DEPTH, -1))
        queries, keys, values = self.between(self.between_norm(slots)).chunk(3, -1)
        shares = torch.softmax(queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5, -1)
        slots = slots + self.between_out(shares @ values)
        logits: Tensor = self.vocabulary(self.last_norm(slots + self.last(slots)))
        return logits
