"""Layers of the reference model: norms, attention, rotary embeddings."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reader_edge_runtime.arrays import Float64Array

_UNSCALED = {  # windowed layers that only rope_parameters can scale: the key of their base
    **dict.fromkeys(("gemma3_text", "gemma3n_text"), "rope_local_base_freq"),
    "olmo3": "rope_theta",
}


@dataclass(frozen=True, slots=True)
class Rotary:
    """inverse_frequencies: (D/2,), radians a position. magnitude: what sines and cosines are multiplied by."""

    inverse_frequencies: Float64Array
    magnitude: float


def rotary_of(config: Mapping[str, Any], defaults: Mapping[str, Any], head_dim: int, layer_type: str) -> Rotary:
    """What layers of a type rotate by, up to where LongRoPE switches. defaults: what the class supposes for keys."""
    is_local = config["model_type"] in _UNSCALED and layer_type == "sliding_attention"
    given = _given(config, layer_type, is_local)
    theta_key = _UNSCALED[config["model_type"]] if is_local else "rope_theta"
    theta = float(_first(given.get("rope_theta"), config.get(theta_key), defaults.get(theta_key)))
    if "alpha" in given:  # Hunyuan's, which stretches the base once, for texts of any length
        theta *= given["alpha"] ** (head_dim / (head_dim - 2))
    share_key = "partial_rotary_factor"
    width = int(head_dim * _first(given.get(share_key), config.get(share_key), defaults.get(share_key), 1.0))
    exponents = np.arange(0, width, 2) / width
    plain = theta**-exponents
    kind = given.get("rope_type") or given.get("type") or "default"
    longest = config["max_position_embeddings"]
    original = _first(
        given.get("original_max_position_embeddings"),
        config.get("original_max_position_embeddings"),
        defaults.get("original_max_position_embeddings"),
        longest,
    )
    if kind == "linear":
        return Rotary(plain / given["factor"], 1.0)
    if kind == "llama3":
        return Rotary(_banded(plain, given, original), 1.0)
    if "short_mscale" in given:  # Phi-MoE's
        return Rotary(plain / np.array(given["short_factor"]), float(given["short_mscale"]))
    if "short_factor" in given:
        stretched = math.sqrt(1 + math.log(longest / original) / math.log(original)) if longest > original else 1.0
        return Rotary(plain / np.array(given["short_factor"]), given.get("attention_factor") or stretched)
    if kind == "yarn":
        return Rotary(_yarn(theta, plain, given, original), _yarn_magnitude(given))
    return Rotary(plain, 1.0)  # "dynamic" too, which changes nothing within the model's own context


def query_scale_of(config: Mapping[str, Any]) -> tuple[float, int] | None:
    """(beta, step): queries at position p grow by 1 + beta log(1 + floor(p / step)). None where they do not.

    Llama 4's temperature of attention, which Ministral 3 has by the keys of the position embedding.
    """
    given = _given(config, "full_attention", is_local=False)
    beta = given.get("llama_4_scaling_beta")
    if beta is None:
        return None
    step = _first(
        given.get("original_max_position_embeddings"),
        config.get("original_max_position_embeddings"),
        config["max_position_embeddings"],
    )
    return float(beta), int(step)


def _given(config: Mapping[str, Any], layer_type: str, is_local: bool) -> dict[str, Any]:
    """The parameters of a type of layer, wherever they stand."""
    found: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        parameters = config.get(key) or {}
        is_nested = any(isinstance(value, dict) for value in parameters.values())
        if is_nested:
            # What is given for full layers alone holds for all of them, unless local ones have their own.
            own = parameters.get(layer_type) or ({} if is_local else parameters.get("full_attention"))
            found |= own or {}
        elif not is_local:
            found |= parameters
    return {key: value for key, value in found.items() if value is not None}


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _banded(plain: Float64Array, given: Mapping[str, Any], original: int) -> Float64Array:
    """Llama 3.1: long waves are stretched, short ones stay, between them there is a straight passage."""
    turns = original * plain / (2 * math.pi)
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0, 1)
    banded: Float64Array = share * plain + (1 - share) * plain / given["factor"]
    return banded


def _yarn(theta: float, plain: Float64Array, given: Mapping[str, Any], original: int) -> Float64Array:
    """Frequencies that turn often stay, seldom ones are stretched, between them there is a straight passage."""
    width = 2 * len(plain)

    def place(num_turns: float) -> float:
        return width * math.log(original / (num_turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = place(given.get("beta_fast") or 32), place(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    stretched = np.clip((np.arange(width // 2) - first) / (last - first or 0.001), 0, 1)
    mixed: Float64Array = plain * (1 - stretched) + plain / given["factor"] * stretched
    return mixed


def _yarn_magnitude(given: Mapping[str, Any]) -> float:
    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(given["factor"]) + 1 if given["factor"] > 1 else 1.0

    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    if given.get("mscale") and given.get("mscale_all_dim"):
        return grown(given["mscale"]) / grown(given["mscale_all_dim"])
    return grown(1)


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
