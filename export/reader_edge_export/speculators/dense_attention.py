"""Plain attention for a speculator's module: over the nodes of this pass and of earlier ones, by a mask."""

from typing import Any

import torch


class DenseAttention:
    """An `Attend` with memory. seen: bool (N, M), which of all M nodes so far, its own pass included, a node sees."""

    def __init__(self) -> None:
        self.seen = torch.ones(0, 0, dtype=torch.bool)
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def causal(cls, num_nodes: int) -> "DenseAttention":
        """Of one pass over a chain."""
        attention = cls()
        attention.seen = torch.ones(num_nodes, num_nodes, dtype=torch.bool).tril()
        return attention

    def __call__(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if module.layer_idx in self._kept:
            pairs = zip(self._kept[module.layer_idx], (key, value), strict=True)
            key, value = (torch.cat(pair, dim=2) for pair in pairs)
        self._kept[module.layer_idx] = key, value
        group = query.shape[1] // key.shape[1]
        key, value = (rows.repeat_interleave(group, dim=1) for rows in (key, value))
        scores = query @ key.transpose(2, 3) * module.scaling
        weights = scores.masked_fill(~self.seen, float("-inf")).softmax(-1)
        heads: torch.Tensor = weights @ value
        return heads.transpose(1, 2)
