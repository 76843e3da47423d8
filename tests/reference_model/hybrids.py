"""Falcon-H1: attention and Mamba2 side by side in each layer, and factors that its training was tuned by.

Written from the report (arXiv 2507.22448, sections 2 and 3) and llama.cpp's converter, not from transformers' code.
"""

import torch
from torch import Tensor

from tests.reference_model.reference_model import ReferenceModel


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
