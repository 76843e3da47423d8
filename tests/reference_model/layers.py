"""Recurrent layers and mixtures of experts, worked out one token, or one expert, at a time.

The gated delta rule is that of arXiv:2412.06464, Mamba2 that of arXiv:2405.21060.
"""

from collections.abc import Callable

import torch
from torch import Tensor

ExpertMlp = Callable[[int, Tensor], Tensor]  # what an expert makes of rows (n, E): (n, E)


def mixed(x: Tensor, chosen: Tensor, shares: Tensor, mlp: ExpertMlp) -> Tensor:
    """x (N, E), each row through its experts (N, k), which count by their shares (N, k) -> (N, E)."""
    output = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        is_chosen = chosen == expert
        rows = is_chosen.any(-1)
        share = (shares * is_chosen).sum(-1, keepdim=True)
        output[rows] += share[rows] * mlp(expert, x[rows])
    return output


def convolved(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Each channel of rows (N, C) summed over the token itself and those before it; weight (C, 1, K), bias (C,)."""
    num_tokens, (num_channels, _, num_taps) = len(rows), weight.shape
    padded = torch.cat((torch.zeros(num_taps - 1, num_channels), rows))
    summed = torch.zeros(num_tokens, num_channels) if bias is None else bias.expand(num_tokens, num_channels)
    for tap in range(num_taps):
        summed = summed + padded[tap : tap + num_tokens] * weight[:, 0, tap]
    return summed


def unit(rows: Tensor) -> Tensor:
    """Rows of length one, but for what keeps rows of zeros finite."""
    return rows / torch.sqrt((rows * rows).sum(-1, keepdim=True) + 1e-6)


def gated_delta(queries: Tensor, keys: Tensor, values: Tensor, log_decays: Tensor, betas: Tensor) -> Tensor:
    """What N tokens read: queries and keys (N, Hk, Dk), values (N, Hv, Dv), log_decays and betas (N, Hv).

    Each head's state fades, and then what it answers to the key moves towards the value, by the share beta.
    """
    group = values.shape[1] // keys.shape[1]
    queries, keys = queries.repeat_interleave(group, 1), keys.repeat_interleave(group, 1)
    state = torch.zeros(values.shape[1], keys.shape[2], values.shape[2])
    read = []
    for query, key, value, log_decay, beta in zip(queries, keys, values, log_decays, betas, strict=True):
        state = state * torch.exp(log_decay)[:, None, None]
        answer = torch.einsum("hkv,hk->hv", state, key)
        state = state + torch.einsum("hk,hv->hkv", key, beta[:, None] * (value - answer))
        read.append(torch.einsum("hkv,hk->hv", state, query))
    return torch.stack(read)


def mamba2(values: Tensor, steps: Tensor, rates: Tensor, written: Tensor, read: Tensor) -> Tensor:
    """What N tokens read: values (N, H, P), steps (N, H), rates (H,) below nought, written and read (N, G, S).

    Each head's state fades by its rate and the step's length, and takes up the value along what is written.
    """
    group = values.shape[1] // written.shape[1]
    written, read = written.repeat_interleave(group, 1), read.repeat_interleave(group, 1)
    state = torch.zeros(values.shape[1], written.shape[2], values.shape[2])
    found = []
    for value, step, key, query in zip(values, steps, written, read, strict=True):
        state = state * torch.exp(step * rates)[:, None, None]
        state = state + torch.einsum("hs,hp->hsp", key, step[:, None] * value)
        found.append(torch.einsum("hsp,hs->hp", state, query))
    return torch.stack(found)
