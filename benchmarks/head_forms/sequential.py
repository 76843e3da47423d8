"""The form that there is: Hydra's sequential heads as MLPs, two tokens ahead (heads/head_module.py)."""

import torch

from benchmarks.head_forms.form import Form, best
from benchmarks.head_forms.places import Places
from reader_edge_export.heads.head_module import HeadModule
from reader_edge_runtime.drafting.sources.head_file import NUM_GUESSES

Tensor = torch.Tensor


class SequentialForm(Form):
    """Reads one hidden state and the pending token, and behind them its own guess."""

    name = "MLP"
    reads_text = False
    depth = 2

    def __init__(self, head: HeadModule) -> None:
        super().__init__(head)
        self.head = head

    def logits(self, places: Places) -> Tensor:
        states, pending = places.states.flatten(0, 1).float(), places.pending.flatten()
        said = self.head(states, pending, places.following[..., 0].flatten())
        logits: Tensor = torch.stack(said, 1).unflatten(0, places.pending.shape)
        return logits

    def remember(self, states: Tensor, pending: Tensor) -> tuple[Tensor, Tensor]:
        nothing = torch.zeros(1, 0, states.shape[1], 0)
        return nothing, nothing

    def forward(self, states: Tensor, pending: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        inner = self.head.inner_of(states[:, -1:], pending[:, -1:])
        first = best(self.vocabulary(self.head.first_out(inner))[:, 0])
        if self.depth == 1:
            return first
        guesses = first[1][0, :NUM_GUESSES, None]
        return *first, *best(self.head.second_logits(inner.expand(NUM_GUESSES, -1, -1), guesses)[:, 0])
