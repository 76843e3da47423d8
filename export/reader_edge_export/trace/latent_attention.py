"""Has attention whose keys and values come from a latent traced over the latent itself: one KV head of all queries."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from reader_edge_export.sources.latent_heads import LatentHeads, latent_modules
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.sources.weights import ExpertMatrices
from reader_edge_export.trace.markers import EXPERT_LINEAR, Outputs, mark


@contextmanager
def latent_caches(source: SourceModel) -> Iterator[None]:
    """While entered, such modules make no keys and values, and hand the latent to the attention in place of both."""
    modules: list[Any] = [module for _, module in latent_modules(source.skeleton)]
    for module in modules:
        module.expand_kv = _latent
    try:
        yield
    finally:
        for module in modules:
            del module.expand_kv


def _latent(plain: torch.Tensor, positioned: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, 1, N, R) and (B, 1, N, P), side by side: what both keys and values are."""
    latent = torch.cat((plain, positioned), dim=-1)
    return latent, latent


def absorbed_queries(heads: LatentHeads, query: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Queries of keys (B, H, N, D + P), the last P with positions -> those of latents (B, H, N, R + P).

    positions: of nodes, (B, N), whose sizes count alone.
    """
    plain, positioned = query.transpose(1, 2).split([heads.keys.shape[2], heads.num_positioned], dim=-1)
    return torch.cat((_by_head(heads.keys, plain, positions), positioned), dim=-1).transpose(1, 2)


def latent_values(heads: LatentHeads, latents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Means of latents (B, N, H, R + P) -> of the values of their heads (B, N, H, V)."""
    return _by_head(heads.values, latents[..., : heads.rank], positions)


def _by_head(matrices: ExpertMatrices, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rows (B, N, H, K), each times the matrix of its head -> (B, N, H, J)."""
    num_heads, num_outputs, num_inputs = matrices.shape
    numbers = 0 * positions.reshape(-1, 1) + torch.arange(num_heads)  # the same for all layers
    chosen = Outputs.chosen(None, num_heads, num_outputs)
    flat = rows.reshape(-1, num_heads, num_inputs)
    (product,) = mark(EXPERT_LINEAR, chosen, flat, numbers, parameter_s=matrices.name, num_ranks_i=num_heads)
    return product.reshape(*positions.shape, num_heads, num_outputs)
