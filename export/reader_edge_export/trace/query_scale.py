"""Queries that grow with their position (Ministral 3): traced as a table, where transformers computes a logarithm.

The last bit of a logarithm may hang on how many are taken at a time, so that a token's answer would hang on the width
of its pass.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

_FUNCTION = "get_llama_4_attn_scale"  # of the files of transformers that have such queries


@contextmanager
def tabled_query_scales(model: PreTrainedModel, max_context: int) -> Iterator[None]:
    """While entered, a model looks the growth of its queries up. max_context: positions that can be."""
    file: Any = sys.modules[type(model).__module__]
    computed = getattr(file, _FUNCTION, None)
    if computed is None:
        yield
        return

    def looked_up(position_ids: torch.Tensor, beta: float, step: int) -> torch.Tensor:
        """Of positions (B, N): (B, 1, N, 1)."""
        num_steps = -(-max_context // step)
        table: torch.Tensor = computed(step * torch.arange(num_steps)[None], beta, step).reshape(num_steps)
        return table[torch.div(position_ids, step, rounding_mode="trunc")][:, None, :, None]

    setattr(file, _FUNCTION, looked_up)
    try:
        yield
    finally:
        setattr(file, _FUNCTION, computed)
