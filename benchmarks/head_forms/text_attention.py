"""Causal attention of places to their text, and of guesses to the guesses before them as well."""

import math
from collections.abc import Sequence

import torch
from torch import nn

Tensor = torch.Tensor
Remembered = tuple[Tensor, Tensor]  # keys and values

NUM_HEADS = 4


class TextAttention(nn.Module):
    """Attention whose scores fall with the distance, by a slope of each head (ALiBi, arXiv 2108.12409)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.slopes = nn.Buffer(2.0 ** -torch.arange(0, 2 * NUM_HEADS, 2)[:, None, None])

    def split(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (N, H, L, D) of inputs (N, L, W)."""
        projected = self.project(inputs).unflatten(-1, (3, NUM_HEADS, -1))
        queries, keys, values = projected.permute(2, 0, 3, 1, 4).unbind(0)
        return queries, keys, values

    def forward(self, queries: Tensor, text: Remembered, chain: Sequence[Remembered] = ()) -> Tensor:
        """What Q queries (N, H, Q, D), of the last Q places of a text, read (N, Q, W).

        text: of all its places (N or 1, H, L, D). chain: of guesses behind each query's place, (N, H, Q, D) each, up to
        the query's own.
        """
        keys, values = text
        places = torch.arange(keys.shape[2])
        behind = places[-queries.shape[2] :, None] - places
        falling = -self.slopes * (behind + len(chain))
        scores = [self._scores(queries @ keys.transpose(2, 3)) + falling.masked_fill(behind < 0, -torch.inf)]
        for number, (key, _) in enumerate(chain, start=1):
            likeness = self._scores((queries * key).sum(-1, keepdim=True))
            scores.append(likeness - self.slopes * (len(chain) - number))
        shares = torch.softmax(torch.cat(scores, -1), -1)
        read = shares[..., : keys.shape[2]] @ values
        for number, (_, value) in enumerate(chain):
            read = read + shares[..., keys.shape[2] + number, None] * value
        said: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return said

    def _scores(self, products: Tensor) -> Tensor:
        head_size: int = self.out.in_features // NUM_HEADS
        return products / math.sqrt(head_size)
