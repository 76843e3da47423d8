"""The network of a head, in PyTorch: what follows the pending token, and what follows that.

Hydra's sequential heads (arXiv 2402.05109, section 3) with one hidden layer each: the first reads the target's last
hidden state and the pending token, the second what the first made of them and the first's guess.
"""

import torch
from torch import nn

from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes

Tensor = torch.Tensor


class HeadModule(nn.Module):
    """mean, scale: of the target's hidden states (E,), which are brought to mean 0 and variance 1."""

    def __init__(self, sizes: HeadSizes, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.sizes = sizes
        self.mean, self.scale = nn.Buffer(mean), nn.Buffer(scale)
        self.embedding = nn.Parameter(0.1 * torch.randn(sizes.ids + 1, sizes.embedded))
        self.first = nn.Linear(sizes.hidden + sizes.embedded, sizes.inner)
        self.first_out = nn.Linear(sizes.inner, sizes.rank)
        self.second = nn.Linear(sizes.inner + sizes.embedded, sizes.inner)
        self.second_out = nn.Linear(sizes.inner, sizes.rank)
        self.vocabulary = nn.Linear(sizes.rank, sizes.ids + 1)

    def forward(self, states: Tensor, pending: Tensor, guesses: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, ids + 1) after the pending token, and after the guess behind it.

        states: float32 (B, E). pending, guesses: int64 (B,), numbers of ids.
        """
        inner = self.inner_of(states, pending)
        return self.vocabulary(self.first_out(inner)), self.second_logits(inner, guesses)

    def inner_of(self, states: Tensor, pending: Tensor) -> Tensor:
        known = torch.cat([(states - self.mean) / self.scale, self.embedding[pending]], -1)
        return nn.functional.silu(self.first(known))

    def second_logits(self, inner: Tensor, guesses: Tensor) -> Tensor:
        known = torch.cat([inner, self.embedding[guesses]], -1)
        logits: Tensor = self.vocabulary(self.second_out(nn.functional.silu(self.second(known))))
        return logits

    def start_from(self, rows: Tensor) -> None:
        """Begin with what is known of the target's vocabulary. rows: float32 (ids, E), its logit head's."""
        left, strengths, _ = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
        with torch.no_grad():
            rank, embedded = min(self.sizes.rank, len(strengths)), min(self.sizes.embedded, len(strengths))
            named = left[:, :embedded] * strengths[:embedded]
            self.embedding[:-1, :embedded] = named / named.std()
            out = left[:, :rank] * strengths[:rank]
            self.vocabulary.weight[:-1, :rank] = out / out.std() / rank**0.5
            nn.init.zeros_(self.vocabulary.bias)
