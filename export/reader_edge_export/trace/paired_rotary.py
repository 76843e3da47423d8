"""Rotary embeddings that turn neighbouring values of a head (Cohere), traced as the usual ones of two halves.

Queries and keys take another order, even values first, which no product of the two sees.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from reader_edge_export.trace.text_positions import angles_of

_PAIRED = ("cohere", "cohere2")  # model types
_FUNCTION = "apply_rotary_pos_emb"  # of their files in transformers


@contextmanager
def halved_rotary(model: PreTrainedModel) -> Iterator[None]:
    """While entered, a model whose values turn with their neighbours keeps queries and keys in the order of halves."""
    if model.config.model_type not in _PAIRED:
        yield
        return
    file: Any = sys.modules[type(model).__module__]
    rotary: Any = model.base_model.rotary_emb
    paired = getattr(file, _FUNCTION)
    setattr(file, _FUNCTION, _rotated)
    rotary.forward = lambda _, position_ids: angles_of(rotary, position_ids)
    try:
        yield
    finally:
        setattr(file, _FUNCTION, paired)
        del rotary.forward


def _rotated(
    query: torch.Tensor, key: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of queries and keys (B, H, N, D) by angles (B, N, D)."""
    query, key = (torch.cat((rows[..., ::2], rows[..., 1::2]), dim=-1) for rows in (query, key))
    rotated: tuple[torch.Tensor, torch.Tensor] = apply_rotary_pos_emb(query, key, cosines, sines)
    return rotated
