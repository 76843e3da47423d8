"""Multi-head latent attention: the matrix that makes keys and values of a latent, cut into those of each head.

A head's keys and values are products of the latent that all heads share (DeepSeek-V2, arXiv 2405.04434, section 2.1):
k = K c and v = V c. So q k = (K^T q) c, and the mean of values is V times the mean of latents: queries and outputs can
meet the matrices in place of keys and values, and the latent alone is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from reader_edge_export.sources.weights import ExpertMatrices, Weights
from reader_edge_runtime.arrays import Float32Array


class LatentHeads:
    """Of a module of transformers with such attention. Matrices of heads are read one at a time, as experts' are.

    name: of the parameter that holds them. keys: (H, R, D), by which a query without positions becomes one of the
    latent. values: (H, V, R), by which a latent becomes a head's values. rank: R.
    """

    def __init__(self, name: str, module: Any, weights: Weights) -> None:
        """name: of the module."""
        self.name = f"{name}.kv_b_proj.weight"
        num_heads, self.rank = module.num_heads, module.kv_lora_rank
        self.num_positioned = module.qk_rope_head_dim
        cut = module.qk_nope_head_dim
        heads = _HeadRows(weights, self.name, cut, module.v_head_dim)
        self.keys = ExpertMatrices(heads.keys_name, (num_heads, self.rank, cut), True, heads, is_sensitive=True)
        shape = num_heads, module.v_head_dim, self.rank
        self.values = ExpertMatrices(heads.values_name, shape, False, heads, is_sensitive=True)
        module.latent_heads = self
        module.kv_b_proj = HeadProduct(module.kv_b_proj.weight)


def latent_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules of a model, by their names, that make keys and values of a latent."""
    return ((name, each) for name, each in model.named_modules() if hasattr(each, "kv_b_proj"))


class HeadProduct(torch.nn.Module):
    """What the source multiplies latents by, and no package: it is no Linear, whose rows are counted."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows, self.weight)


@dataclass(frozen=True, slots=True)
class _HeadRows(Weights):
    """weights: of a source. name: of a matrix whose rows are num_keys of keys and num_values of values of each head."""

    weights: Weights
    name: str
    num_keys: int
    num_values: int

    @property
    def keys_name(self) -> str:
        return f"{self.name}.keys"

    @property
    def values_name(self) -> str:
        return f"{self.name}.values"

    def read(self, name: str) -> Float32Array:
        num_heads = len(self.weights.read(self.name)) // (self.num_keys + self.num_values)
        return np.stack([self.read_expert(name, head) for head in range(num_heads)])

    def read_expert(self, name: str, expert: int) -> Float32Array:
        start = expert * (self.num_keys + self.num_values)
        middle = start + self.num_keys
        rows = (start, middle) if name == self.keys_name else (middle, middle + self.num_values)
        return self.weights.read_rows(self.name, *rows)
