"""Rotary embeddings that tell time, height and width of images apart (mRoPE), traced as what they are of texts: plain.

A text's three positions are the same, so that it makes no difference which angle is of which.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel


@contextmanager
def plain_positions(model: PreTrainedModel) -> Iterator[None]:
    """While entered, a model's angles are computed once and not three times."""
    rotaries: list[Any] = [module for module in model.modules() if hasattr(module, "mrope_section")]
    for rotary in rotaries:
        rotary.forward = partial(_angles_of_texts, rotary)
    try:
        yield
    finally:
        for rotary in rotaries:
            del rotary.forward


def _angles_of_texts(rotary: Any, _: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return angles_of(rotary, position_ids[0])


def angles_of(rotary: Any, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines (B, N, D) of positions (B, N) by a rotary module, whose two halves are alike."""
    halves = position_ids[:, :, None].float() * rotary.inv_freq
    angles = torch.cat((halves, halves), dim=-1)
    return angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling
