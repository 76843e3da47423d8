"""Gemma 4: layers of two kinds that differ in more than their window, and inputs of each layer.

Written from the config's keys and llama.cpp's loader of such models, not from transformers' code.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reader_edge_export.sources.layered_model import best
from tests.reference_model.layers import Rotary, mixed
from tests.reference_model.reference_model import ReferenceModel, rotated

_WHOLE, _WINDOWED = "full_attention", "sliding_attention"
_PERIOD = 6  # where no kinds are given, each so many-th layer sees all tokens, and the last one
_HEAD_DIM = 512  # of such layers, where it is not given
_ROTARY: dict[str, dict[str, Any]] = {  # where none is given
    _WHOLE: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    _WINDOWED: {"rope_theta": 1e4},
}


class Gemma4Model(ReferenceModel):
    """What is not as in other models; keys and values (H, N, D) of the layers that keep them are noted on the way."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        super().__init__(config, defaults, weights)
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._inputs = torch.empty(0)  # of each layer, (N, L, P)

    def window(self, layer: int) -> int | None:
        return int(self._value("sliding_window")) if self._kind(layer) == _WINDOWED else None

    def num_kv_heads_of(self, layer: int) -> int:
        if self._kind(layer) == _WINDOWED:
            return self.num_kv_heads
        given = self._config.get("num_global_key_value_heads") if self._value("attention_k_eq_v") else None
        return int(self._of_whole_layers("num_key_value_heads") or given or self.num_kv_heads)

    def head_dim_of(self, layer: int) -> int:
        if self._kind(layer) == _WINDOWED:
            return self.head_dim
        if self._config.get("per_layer_config") is not None:
            return int(self._of_whole_layers("head_dim") or self.head_dim)
        return int(self._config.get("global_head_dim", _HEAD_DIM))

    def shares(self, layer: int) -> int | None:
        first = self.num_layers - int(self._value("num_kv_shared_layers"))
        if layer < first:
            return None
        return max(each for each in range(first) if self._kind(each) == self._kind(layer))

    def rotary(self, layer_type: str) -> Rotary:
        layer = next(each for each in range(self.num_layers) if self._kind(each) == layer_type)
        by_type: Any = self._config.get("rope_parameters") or self._config.get("rope_scaling") or _ROTARY
        given = by_type[layer_type]
        num_pairs = self.head_dim_of(layer) // 2
        waves = float(given["rope_theta"]) ** -(np.arange(num_pairs) / num_pairs)
        if given.get("rope_type") == "proportional":  # the slower pairs stand still
            num_rotated = math.floor(given.get("partial_rotary_factor", 1.0) * num_pairs)
            waves = np.where(np.arange(num_pairs) < num_rotated, waves / given.get("factor", 1.0), 0.0)
        return Rotary(waves, 1.0)

    def scale(self, layer: int) -> float:
        return 1.0

    def has_experts(self, layer: int) -> bool:
        return bool(self._value("enable_moe_block"))

    def _kind(self, layer: int) -> str:
        given = self._config.get("layer_types")
        if given:
            return str(given[layer])
        return _WINDOWED if (layer + 1) % _PERIOD and layer + 1 < self.num_layers else _WHOLE

    def _activation_name(self) -> str:
        return str(self._value("hidden_activation"))

    def _of_whole_layers(self, key: str) -> Any:
        """What transformers 5.23 writes for each layer."""
        layer = next(each for each in range(self.num_layers) if self._kind(each) == _WHOLE)
        given = self._config.get("per_layer_config") or {}
        return next((each.get(key) for number, each in given.items() if int(number) == layer), None)

    def _embedded(self, token_ids: Tensor) -> Tensor:
        embedded: Tensor = self._weights["model.embed_tokens.weight"][token_ids] * self._width**0.5
        size = int(self._value("hidden_size_per_layer_input"))
        if size:
            table = self._weights["model.embed_tokens_per_layer.weight"]
            looked_up = table[torch.where(token_ids < len(table), token_ids, 0)] * size**0.5
            projected = self._linear("model.per_layer_model_projection", embedded) / self._width**0.5
            by_layer = (len(token_ids), self.num_layers, size)
            normed = self._norm("model.per_layer_projection_norm", projected.view(by_layer))
            self._inputs = (normed + looked_up.view(by_layer)) / math.sqrt(2)
        return embedded

    def _after_layer(self, layer: int, x: Tensor) -> Tensor:
        name = f"model.layers.{layer}"
        attended = self._attention(layer, f"{name}.self_attn", self._norm(f"{name}.input_layernorm", x))
        x = x + self._norm(f"{name}.post_attention_layernorm", attended)
        bent = self._mlp(f"{name}.mlp", self._norm(f"{name}.pre_feedforward_layernorm", x))
        if self.has_experts(layer):
            bent = self._norm(f"{name}.post_feedforward_layernorm_1", bent) + self._of_experts(name, x)
        x = x + self._norm(f"{name}.post_feedforward_layernorm", bent)
        if self._value("hidden_size_per_layer_input"):
            gate = self.activation(self._linear(f"{name}.per_layer_input_gate", x))
            added = self._linear(f"{name}.per_layer_projection", gate * self._inputs[:, layer])
            x = x + self._norm(f"{name}.post_per_layer_input_norm", added)
        return x * self._weights[f"{name}.layer_scalar"]

    def _of_experts(self, name: str, x: Tensor) -> Tensor:
        """What a layer's experts make of rows, beside its MLP; shares add up to one before the scales of experts."""
        router = f"{name}.router"
        root_mean_squares = torch.sqrt((x * x).mean(-1, keepdim=True) + self.epsilon)
        scaled = x / root_mean_squares * self._weights[f"{router}.scale"] / math.sqrt(self._width)
        scores, chosen = best(self._linear(f"{router}.proj", scaled), int(self._value("top_k_experts")))
        shares = torch.softmax(scores, -1) * self._weights[f"{router}.per_expert_scale"][chosen]
        normed = self._norm(f"{name}.pre_feedforward_layernorm_2", x)
        bent = mixed(normed, chosen, shares, lambda expert, rows: self._gated(f"{name}.experts", expert, rows))
        return self._norm(f"{name}.post_feedforward_layernorm_2", bent)

    def _attention(self, layer: int, name: str, x: Tensor) -> Tensor:
        rotary, width = self.rotary(self._kind(layer)), self.head_dim_of(layer)

        def by_head(values: Tensor) -> Tensor:
            return values.view(len(x), -1, width).transpose(0, 1)

        queries = rotated(self._norm(f"{name}.q_norm", by_head(self._linear(f"{name}.q_proj", x))), rotary)
        source = self.shares(layer)
        if source is None:
            keys = values = by_head(self._linear(f"{name}.k_proj", x))
            if self._kind(layer) == _WINDOWED or not self._value("attention_k_eq_v"):
                values = by_head(self._linear(f"{name}.v_proj", x))
            values = values / torch.sqrt((values * values).mean(-1, keepdim=True) + self.epsilon)
            self._kept[layer] = rotated(self._norm(f"{name}.k_norm", keys), rotary), values
        keys, values = self._kept[layer if source is None else source]
        group = self.num_heads // len(keys)
        scores = queries @ keys.repeat_interleave(group, 0).transpose(1, 2)
        distances = torch.arange(len(x))[:, None] - torch.arange(len(x))
        is_hidden = (distances < 0) | (distances >= (self.window(layer) or math.inf))
        weights = torch.softmax(scores.masked_fill(is_hidden, -math.inf), -1)
        mixed = weights @ values.repeat_interleave(group, 0)
        return self._linear(f"{name}.o_proj", mixed.transpose(0, 1).flatten(1))
