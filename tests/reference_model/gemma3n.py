"""Gemma 3n: Gemma 4's shared keys and inputs of each layer, and several versions of a token's state.

Written from the config's keys, the papers of AltUp (arXiv 2301.13310) and LAuReL (arXiv 2411.07501) and llama.cpp's
graph of such models, not from transformers' code.
"""

import math
from statistics import NormalDist

import torch
from torch import Tensor

from tests.reference_model.gemma4 import Gemma4Model
from tests.reference_model.layers import Rotary, rotary_of

_WHOLE, _WINDOWED = "full_attention", "sliding_attention"
_PERIOD = 5  # where no kinds are given, each so many-th layer sees all tokens
_NUM_SPARSE, _SHARE = 10, 0.95  # where no shares are given, of the first layers of larger models
_LEAST = 1e-5  # of a mean square


class Gemma3nModel(Gemma4Model):
    """Hidden states are (A, N, E), versions first."""

    def num_kv_heads_of(self, layer: int) -> int:
        return self.num_kv_heads

    def head_dim_of(self, layer: int) -> int:
        return self.head_dim

    def rotary(self, layer_type: str) -> Rotary:
        return rotary_of(self._config, self._defaults, self.head_dim, layer_type)

    def _kind(self, layer: int) -> str:
        given = self._config.get("layer_types")
        return str(given[layer]) if given else (_WINDOWED if (layer + 1) % _PERIOD else _WHOLE)

    def _embedded(self, token_ids: Tensor) -> Tensor:
        first = super()._embedded(token_ids)
        others = range(int(self._value("altup_num_inputs")) - 1)
        return torch.stack([first, *(self._alike(f"model.altup_projections.{i}", first, first) for i in others)])

    def _merged(self, hidden: Tensor) -> Tensor:
        first, *others = hidden
        places = [f"model.altup_unembed_projections.{i}" for i in range(len(others))]
        turned = [self._alike(name, each, first) for name, each in zip(places, others, strict=True)]
        return torch.stack([first, *turned]).mean(0)

    def _alike(self, name: str, x: Tensor, model: Tensor) -> Tensor:
        """x (N, E) by a matrix, as large as a model."""
        turned = self._linear(name, x)
        sizes = [(each * each).mean(-1, keepdim=True) for each in (model, turned)]
        return turned * torch.sqrt(sizes[0]) / torch.sqrt(sizes[1].clamp(min=_LEAST))

    def _after_layer(self, layer: int, x: Tensor) -> Tensor:
        name, active = f"model.layers.{layer}", int(self._value("altup_active_idx"))
        mixing = self._linear(f"{name}.altup.prediction_coefs", self._modalities(name, x[active]))
        predicted = x + torch.einsum("nji,ine->jne", mixing.unflatten(-1, (len(x), len(x))), x)
        before = predicted[active]
        normed = self._norm(f"{name}.input_layernorm", before)
        attended = self._attention(layer, f"{name}.self_attn", normed)
        attended = before + self._norm(f"{name}.post_attention_layernorm", attended)
        narrow = self._linear(f"{name}.laurel.linear_right", self._linear(f"{name}.laurel.linear_left", normed))
        mixed = (attended + normed + self._norm(f"{name}.laurel.post_laurel_norm", narrow)) / math.sqrt(2)
        bent = self._sparse_mlp(layer, f"{name}.mlp", self._norm(f"{name}.pre_feedforward_layernorm", mixed))
        after = mixed + self._norm(f"{name}.post_feedforward_layernorm", bent)
        shares = 1 + self._linear(f"{name}.altup.correction_coefs", self._modalities(name, after))
        corrected = predicted + shares.T[:, :, None] * (after - before)
        gate = corrected[active]
        if self._value("altup_correct_scale"):
            gate = gate * self._weights[f"{name}.altup.correct_output_scale"]
        gate = self.activation(self._linear(f"{name}.per_layer_input_gate", gate)) * self._inputs[:, layer]
        added = self._linear(f"{name}.per_layer_projection", gate)
        corrected[1:] += self._norm(f"{name}.post_per_layer_input_norm", added)
        return corrected

    def _modalities(self, name: str, x: Tensor) -> Tensor:
        normed = self._norm(f"{name}.altup.router_norm", x) / self._width
        return torch.tanh(self._linear(f"{name}.altup.modality_router", normed))

    def _sparse_mlp(self, layer: int, name: str, x: Tensor) -> Tensor:
        gate = self._linear(f"{name}.gate_proj", x)
        num_sparse = _NUM_SPARSE if self.num_layers > _NUM_SPARSE else 0
        given = self._config.get("activation_sparsity_pattern")
        share = given[layer] if given else _SHARE * (layer < num_sparse)
        if share:
            mean, deviation = gate.mean(-1, keepdim=True), gate.std(-1, keepdim=True, correction=0)
            gate = (gate - mean - NormalDist().inv_cdf(share) * deviation).clamp(min=0)
        return self._linear(f"{name}.down_proj", self.activation(gate) * self._linear(f"{name}.up_proj", x))
