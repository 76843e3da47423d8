"""Attention of a network that is fed what it made itself: EAGLE-3's training-time test (arXiv 2503.01840, section 3.2).

Step 1 is of places that follow true states, and a causal chain. A later step's node at place i follows the node of the
step before at i: it sees step 1 up to i, and the nodes of its own chain.
"""

from typing import Any

import torch

Tensor = torch.Tensor


class ChainAttention:
    """An `Attend` for networks of one layer, called once a step.

    places: int64 (n,), of the first step's nodes those that later steps go on from.
    """

    def __init__(self, num_places: int, places: Tensor) -> None:
        self._places = places
        behind = torch.arange(num_places, device=places.device)[None, :] > places[:, None]
        self._mask = torch.zeros(behind.shape, device=places.device).masked_fill_(behind, float("-inf"))
        self._rows: list[tuple[Tensor, Tensor]] = []

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query: (B, Hq, n, D). key, value: (B, H, n, D). Returns (B, n, Hq, D)."""
        query, key = query.to(value.dtype), key.to(value.dtype)
        self._rows.append((key, value))
        if len(self._rows) == 1:
            attended = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=module.scaling, enable_gqa=True
            )
            return attended.transpose(1, 2)
        (keys, values), *chain = self._rows
        batch, num_heads, num_nodes, size = query.shape
        num_groups = keys.shape[1]
        grouped = (batch, num_groups, num_heads // num_groups, num_nodes)
        queries = (query * module.scaling).reshape(batch, num_groups, -1, size)
        true_scores = (queries @ keys.transpose(-1, -2)).view(*grouped, -1) + self._mask.to(query.dtype)
        queries = queries.view(*grouped, size)
        own_scores = [(queries * own_key.unsqueeze(2)).sum(-1, keepdim=True) for own_key, _ in chain]
        weights = torch.softmax(torch.cat([true_scores, *own_scores], -1), -1).to(value.dtype)
        true_weights, *own_weights = weights.split([true_scores.shape[-1], *(1 for _ in chain)], -1)
        attended = (true_weights.reshape(batch, num_groups, -1, true_weights.shape[-1]) @ values).view(*grouped, size)
        for weight, (_, own_value) in zip(own_weights, chain, strict=True):
            attended = attended + weight * own_value.unsqueeze(2)
        heads: Tensor = attended.reshape(batch, num_heads, num_nodes, size).transpose(1, 2)
        return heads
