"""Muse Glimmer: norms without weights of embeddings and heads, gates behind attention, some layers without positions.

Written from the config's keys and llama.cpp's converter of such models, not from transformers' code.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tests.reference_model.reference_model import ReferenceModel


class MuseGlimmerModel(ReferenceModel):
    """What is not as in other models."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        super().__init__(config, defaults, weights)
        self._gates = torch.empty(0)  # of the layer that attends

    def epsilon_of(self, name: str) -> float:
        return float(self._value("post_norm_eps")) if ".post_" in name else self.epsilon

    def has_positions(self, layer: int) -> bool:
        bases = self._config.get("layer_rope_theta")
        return bool(bases[layer]) if bases else self._is_in_between(layer)

    def _is_windowed(self, layer: int) -> bool:
        layer_types = self._config.get("layer_types")
        return layer_types[layer] == "sliding_attention" if layer_types else self._is_in_between(layer)

    def _is_in_between(self, layer: int) -> bool:
        """Not the last layer, nor each fourth in front of it."""
        return (self.num_layers - 1 - layer) % 4 != 0

    def _activation_name(self) -> str:
        return str(self._value("hidden_activation"))

    def _embedded(self, token_ids: Tensor) -> Tensor:
        return self._unit(super()._embedded(token_ids), self.epsilon)

    def _head(self, hidden: Tensor) -> Tensor:
        name = "lm_head" if "lm_head.weight" in self._weights else "model.embed_tokens"
        scale, cap = self._value("output_multiplier"), self._value("final_logit_softcapping")
        logits: Tensor = cap * torch.tanh(self._linear(name, hidden) * scale / cap)
        return logits

    def _after_layer(self, layer: int, x: Tensor) -> Tensor:
        name = f"model.layers.{layer}"
        attended = self._attention(layer, f"{name}.self_attn", self._norm(f"{name}.input_layernorm", x))
        x = x + self._norm(f"{name}.post_attention_layernorm", attended)
        bent = self._mlp(f"{name}.mlp", self._norm(f"{name}.pre_feedforward_layernorm", x))
        return x + self._norm(f"{name}.post_feedforward_layernorm", bent)

    def _attention(self, layer: int, name: str, x: Tensor) -> Tensor:
        self._gates = torch.sigmoid(self._linear(f"{name}.gate_proj", x))
        return super()._attention(layer, name, x)

    def _linear(self, name: str, x: Tensor, bias: str | None = None) -> Tensor:
        return super()._linear(name, x * self._gates if name.endswith(".o_proj") else x, bias)

    def _head_norm(self, name: str, x: Tensor) -> Tensor:
        scale = self._value("qk_scale_factor") if name.endswith(".q") else 1.0
        return self._unit(x, self.epsilon) * scale

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self._weights[f"{name}.weight"]
        return self._unit(x, self.epsilon_of(name)) * (weight if name == "model.norm" else 1 + weight)

    def _unit(self, x: Tensor, epsilon: float) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon)
