"""EAGLE-3: a decoder layer over embeddings and states of several of the target's layers, joined by a matrix."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from reader_edge_export.speculators.speculator_module import Attend, SpeculatorModule, StepOutput, layer_classes


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """The sizes and switches of one.

    layer: of its decoder layers, of the model type "llama" or "qwen3"; vocab_size is the target's.
    draft_vocab_size: Vd. num_states, state_size: J states of the target, each of E_target numbers.
    norm_before_residual: what the layer finds is added to the normed state. norm_before_fc, fc_norm: the joined states,
    or each of them, are normed first. norm_output: children take the state after `norm`.
    """

    layer: PretrainedConfig
    draft_vocab_size: int
    num_states: int
    state_size: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class Eagle3Module(SpeculatorModule):
    """Parameters: fc, layers.0.self_attn.q_proj and so on, norm, lm_head, embed_tokens; input_norm or fc_norm.{j}."""

    def __init__(self, form: Eagle3Config) -> None:
        super().__init__(form.layer, form.draft_vocab_size)
        self.form = form
        layer_class, norm_class, rotary_class = layer_classes(self.config.model_type)
        size, eps = self.config.hidden_size, self.config.rms_norm_eps
        joined_size = form.num_states * form.state_size
        self.fc = torch.nn.Linear(joined_size, size, bias=False)
        self.input_norm = norm_class(joined_size, eps=eps) if form.norm_before_fc else None
        norms = [norm_class(form.state_size, eps=eps) for _ in range(form.num_states)]
        self.fc_norm = torch.nn.ModuleList(norms) if form.fc_norm else None
        first = FirstLayer(layer_class(self.config, 0), norm_class, self.config, form.norm_before_residual)
        further = [layer_class(self.config, index) for index in range(1, self.config.num_hidden_layers)]
        self.layers = torch.nn.ModuleList([first, *further])
        self.norm = norm_class(size, eps=eps)
        self.rotary_emb = rotary_class(self.config)

    def joined(self, target_states: torch.Tensor) -> torch.Tensor:
        if self.input_norm is not None:
            target_states = self.input_norm(target_states)
        if self.fc_norm is not None:
            states = target_states.split(self.form.state_size, dim=-1)
            target_states = torch.cat([norm(state) for norm, state in zip(self.fc_norm, states, strict=True)], dim=-1)
        joined: torch.Tensor = self.fc(target_states)
        return joined

    def step(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, states: torch.Tensor, attend: Attend
    ) -> StepOutput:
        angles = self.rotary_emb(states, position_ids)
        first, *further = self.layers
        states = first(self.embed_tokens(input_ids), states, angles, attend)
        for layer in further:
            states = layer(states, position_embeddings=angles, attend=attend)
        read = self.norm(states)
        return StepOutput(read, read if self.form.norm_output else states)


class FirstLayer(torch.nn.Module):
    """A decoder layer whose query, key and value are of embedding and state side by side (B, N, 2 * E)."""

    def __init__(self, layer: Any, norm_class: Any, config: PretrainedConfig, norm_before_residual: bool) -> None:
        """layer: an ordinary one, whose parts become this one's."""
        super().__init__()
        self.self_attn = layer.self_attn
        self.mlp = layer.mlp
        self.input_layernorm = layer.input_layernorm
        self.post_attention_layernorm = layer.post_attention_layernorm
        self.hidden_norm = norm_class(config.hidden_size, eps=config.rms_norm_eps)
        self.norm_before_residual = norm_before_residual
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            wide = torch.nn.Linear(2 * config.hidden_size, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)

    def forward(
        self,
        embeddings: torch.Tensor,
        states: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
    ) -> torch.Tensor:
        normed = self.hidden_norm(states)
        both = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        attended, _ = self.self_attn(both, position_embeddings=angles, attention_mask=None, attend=attend)
        states = (normed if self.norm_before_residual else states) + attended
        output: torch.Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return output
