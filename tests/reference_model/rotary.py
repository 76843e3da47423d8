"""Rotary frequencies worked out from config.json's own keys, apart from the code that translates it for transformers.

The formulas are those of the papers and of transformers' `modeling_rope_utils`: Llama 3.1's bands, YaRN
(arXiv:2309.00071) and LongRoPE (arXiv:2402.13753).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reader_edge_runtime.arrays import Float64Array

_UNSCALED = {  # windowed layers that only rope_parameters can scale: the key of their base
    "gemma3_text": "rope_local_base_freq",
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
