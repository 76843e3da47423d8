"""Recurrent layers worked out one token at a time from the papers' formulas, for the second reading."""

import torch
from torch import Tensor


def convolved(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Each channel of rows (N, C) summed over the token itself and those before it; weight (C, 1, K), bias (C,)."""
    num_tokens, (num_channels, _, num_taps) = len(rows), weight.shape
    padded = torch.cat((torch.zeros(num_taps - 1, num_channels), rows))
    summed = torch.zeros(num_tokens, num_channels) if bias is None else bias.expand(num_tokens, num_channels)
    for tap in range(num_taps):
        summed = summed + padded[tap : tap + num_tokens] * weight[:, 0, tap]
    return summed
