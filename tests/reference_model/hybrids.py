"""Falcon-H1: attention and Mamba2 side by side in each layer, and factors that its training was tuned by.

Nemotron-H: layers of one part each, Mamba2, attention without positions, an MLP or experts.

Written from their reports (arXiv 2507.22448, sections 2 and 3; arXiv 2504.03624, section 2; of Nemotron 3 arXiv
2512.20856) and llama.cpp's converters, not from transformers' code.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reader_edge_export.sources.layered_model import best
from tests.reference_model.layers import mixed
from tests.reference_model.reference_model import ReferenceModel

_KINDS = {"M": "linear_attention", "mamba": "linear_attention", "*": "full_attention", "attention": "full_attention"}
_KINDS |= {"-": "mlp", "E": "moe"}


class FalconH1Model(ReferenceModel):
    """What is not as in other models."""

    def attends(self, layer: int) -> bool:
        return True

    def states(self, layer: int) -> dict[str, tuple[int, ...]]:
        return self._mamba_states(self._value("mamba_d_conv"))

    @property
    def _mamba_sizes(self) -> tuple[int, int, int, int]:
        num_heads, num_groups = int(self._value("mamba_n_heads")), int(self._value("mamba_n_groups"))
        width = self._value("mamba_d_ssm") or self._value("mamba_expand") * self._width
        return num_heads, int(width // num_heads), num_groups, int(self._value("mamba_d_state"))

    def _head(self, hidden: Tensor) -> Tensor:
        factor: float = self._value("lm_head_multiplier")
        return super()._head(hidden) * factor

    def _after_layer(self, layer: int, x: Tensor) -> Tensor:
        name = f"model.layers.{layer}"
        normed = self._norm(f"{name}.input_layernorm", x)
        kept = self._mamba(f"{name}.mamba", normed * self._value("ssm_in_multiplier"))
        attended = self._attention(layer, f"{name}.self_attn", normed * self._value("attention_in_multiplier"))
        x = x + kept * self._value("ssm_out_multiplier") + attended * self._value("attention_out_multiplier")
        return x + self._mlp(f"{name}.feed_forward", self._norm(f"{name}.pre_ff_layernorm", x))

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        of_gate, of_output = self._config.get("mlp_multipliers") or (1.0, 1.0)
        gate, up = (self._linear(f"{name}.{part}_proj", x) for part in ("gate", "up"))
        return self._linear(f"{name}.down_proj", self.activation(gate * of_gate) * up) * of_output

    def _linear(self, name: str, x: Tensor, bias: str | None = None) -> Tensor:
        factor = self._value("key_multiplier") if name.endswith(".k_proj") else 1.0
        return super()._linear(name, x, bias) * factor

    def _mamba(self, name: str, x: Tensor) -> Tensor:
        """Gate, values, written, read and steps have a factor each; the norm stands before the gate, behind, or not."""
        num_heads, head_dim, num_groups, state_dim = self._mamba_sizes
        width, shared = num_heads * head_dim, num_groups * state_dim
        factors = torch.tensor(self._config.get("ssm_multipliers") or [1.0] * 5)
        widths = torch.tensor([width, width, shared, shared, num_heads])
        gates, mixed = self._mamba2(name, self._linear(f"{name}.in_proj", x) * factors.repeat_interleave(widths))
        gates = gates * torch.sigmoid(gates)
        if not self._value("mamba_rms_norm"):
            gated = mixed * gates
        elif self._value("mamba_norm_before_gate"):
            gated = self._group_norm(mixed) * self._weights[f"{name}.norm.weight"] * gates
        else:
            gated = self._group_norm(mixed * gates) * self._weights[f"{name}.norm.weight"]
        return self._linear(f"{name}.out_proj", gated)


class NemotronHModel(ReferenceModel):
    """What is not as in other models."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        kinds = config.get("layers_block_type") or config["hybrid_override_pattern"]
        self._kinds: list[str] = [_KINDS.get(kind, kind) for kind in kinds]
        super().__init__({**config, "num_hidden_layers": len(kinds)}, defaults, weights)

    @property
    def epsilon(self) -> float:
        return float(self._value("layer_norm_epsilon"))

    def rotary(self, layer_type: str) -> None:
        return None

    def attends(self, layer: int) -> bool:
        return self._kinds[layer] == "full_attention"

    def has_experts(self, layer: int) -> bool:
        return self._kinds[layer] == "moe"

    def states(self, layer: int) -> dict[str, tuple[int, ...]] | None:
        is_recurrent = self._kinds[layer] == "linear_attention"
        return self._mamba_states(self._value("conv_kernel")) if is_recurrent else None

    def activation_in(self, name: str, values: Tensor) -> Tensor:
        *_, number = ("", *name.split(".")[:3])
        is_recurrent = number.isdecimal() and self._kinds[int(number)] == "linear_attention"
        return values * torch.sigmoid(values) if is_recurrent else self.activation(values)

    @property
    def _mamba_sizes(self) -> tuple[int, int, int, int]:
        names = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size")
        num_heads, head_dim, num_groups, state_dim = (int(self._value(name)) for name in names)
        return num_heads, head_dim, num_groups, state_dim

    def _activation_name(self) -> str:
        return str(self._value("mlp_hidden_act"))

    def _embedded(self, token_ids: Tensor) -> Tensor:
        return self._weights["model.embeddings.weight"][token_ids]

    def _after_layer(self, layer: int, x: Tensor) -> Tensor:
        name = f"model.layers.{layer}"
        normed, mixer = self._norm(f"{name}.norm", x), f"{name}.mixer"
        if self.states(layer) is not None:
            return x + self._mamba(mixer, normed)
        if self.attends(layer):
            return x + self._attention(layer, mixer, normed)
        return x + (self._experts(mixer, normed) if self.has_experts(layer) else self._mlp(mixer, normed))

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        return self._linear(f"{name}.down_proj", self.activation(self._linear(f"{name}.up_proj", x)))

    def _experts(self, name: str, x: Tensor) -> Tensor:
        """Those of a token lie in the best groups, which are known by two of each; they see a narrower row, if any."""
        shares, chosen = self._routed(name, torch.sigmoid(self._linear(f"{name}.gate", x)))
        is_narrow = self._value("moe_latent_size") is not None
        rows = self._linear(f"{name}.fc1_latent_proj", x) if is_narrow else x
        up, down = (self._weights[f"{name}.experts.{part}_proj"] for part in ("up", "down"))
        bent = mixed(rows, chosen, shares, lambda expert, r: self.activation(r @ up[expert].T) @ down[expert].T)
        bent = self._linear(f"{name}.fc2_latent_proj", bent) if is_narrow else bent
        return bent + self._mlp(f"{name}.shared_experts", x)

    def _routed(self, name: str, scores: Tensor) -> tuple[Tensor, Tensor]:
        lifted = scores + self._weights[f"{name}.gate.e_score_correction_bias"]
        by_group = lifted.unflatten(-1, (self._value("n_group"), -1))
        _, kept = best(by_group.topk(2).values.sum(-1), self._value("topk_group"))
        is_kept = torch.zeros(by_group.shape[:2], dtype=torch.bool).scatter(1, kept, value=True)
        allowed = by_group.masked_fill(~is_kept[..., None], -torch.inf).flatten(1)
        _, chosen = best(allowed, self._value("num_experts_per_tok"))
        shares = scores.gather(-1, chosen)
        total = shares.sum(-1, keepdim=True) if self._value("norm_topk_prob") else 1.0
        return shares / total * self._value("routed_scaling_factor"), chosen
