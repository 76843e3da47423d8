"""The networks of each format: EAGLE-3, an MLP, and MTP."""

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from reader_edge_export.speculators.speculator_module import SpeculatorModule, StepOutput, layer_classes
from reader_edge_export.speculators.text_attention import Attend


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
    """Decoder layers over embeddings and states of several of the target's layers, joined by a matrix.

    Parameters: fc, layers.0.self_attn.q_proj and so on, norm, lm_head, embed_tokens; input_norm or fc_norm.{j}.
    """

    def __init__(self, eagle3: Eagle3Config) -> None:
        super().__init__(eagle3.layer, eagle3.draft_vocab_size)
        self.eagle3 = eagle3
        layer_class, norm_class, rotary_class = layer_classes(self.config.model_type)
        size, eps = self.config.hidden_size, self.config.rms_norm_eps
        joined_size = eagle3.num_states * eagle3.state_size
        self.fc = torch.nn.Linear(joined_size, size, bias=False)
        self.input_norm = norm_class(joined_size, eps=eps) if eagle3.norm_before_fc else None
        norms = [norm_class(eagle3.state_size, eps=eps) for _ in range(eagle3.num_states)]
        self.fc_norm = torch.nn.ModuleList(norms) if eagle3.fc_norm else None
        first = FirstLayer(layer_class(self.config, 0), norm_class, self.config, eagle3.norm_before_residual)
        further = [layer_class(self.config, index) for index in range(1, self.config.num_hidden_layers)]
        self.layers = torch.nn.ModuleList([first, *further])
        self.norm = norm_class(size, eps=eps)
        self.rotary_emb = rotary_class(self.config)

    def joined(self, target_states: torch.Tensor) -> torch.Tensor:
        if self.input_norm is not None:
            target_states = self.input_norm(target_states)
        if self.fc_norm is not None:
            states = target_states.split(self.eagle3.state_size, dim=-1)
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
        return StepOutput(read, read if self.eagle3.norm_output else states)


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
        self, embeddings: torch.Tensor, states: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], attend: Attend
    ) -> torch.Tensor:
        normed = self.hidden_norm(states)
        both = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        attended, _ = self.self_attn(both, position_embeddings=angles, attention_mask=None, attend=attend)
        states = (normed if self.norm_before_residual else states) + attended
        output: torch.Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return output


class MlpModule(SpeculatorModule):
    """One hidden layer over a state and a token's embedding, which is fed its own state from then on; no attention.

    Hydra's sequential heads (arXiv 2402.05109, section 3), with the same weights for all tokens ahead.
    Parameters: fc (I, E), of the target's state; token_gain (E,) and token_proj, of an embedding; next_proj (I, I);
    out_proj (I / 4, I) and lm_head (Vd, I / 4); embed_tokens, which is the target's.
    """

    def __init__(self, layer: PretrainedConfig, draft_vocab_size: int) -> None:
        """layer: a config with the target's hidden_size E, and I as its intermediate_size."""
        size, inner = layer.hidden_size, layer.intermediate_size
        super().__init__(layer, draft_vocab_size)
        self.state_size, width = inner, max(inner // 4, 1)
        self.fc = torch.nn.Linear(size, inner, bias=False)
        self.token_gain = torch.nn.Parameter(torch.ones(size))
        self.token_proj = torch.nn.Linear(size, inner)
        self.next_proj = torch.nn.Linear(inner, inner, bias=False)
        self.out_proj = torch.nn.Linear(inner, width)
        self.lm_head = torch.nn.Linear(width, draft_vocab_size, bias=False)

    @property
    def num_layers(self) -> int:
        return 0

    def joined(self, target_states: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor = self.fc(target_states)
        return joined

    def step(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, states: torch.Tensor, attend: Attend
    ) -> StepOutput:
        tokens = self.token_proj(self.embed_tokens(input_ids) * self.token_gain)
        inner = torch.nn.functional.silu(states + tokens)
        return StepOutput(self.out_proj(inner), self.next_proj(inner))


class MtpModule(SpeculatorModule):
    """One decoder layer with full attention over a projection of embedding and state, as Qwen3.5 models bring it.

    Parameters: mtp_layers.0.input_proj, .token_layernorm, .hidden_layernorm, .final_layernorm and those of a decoder
    layer; embed_tokens and lm_head, which are the target's.
    """

    def __init__(self, layer: PretrainedConfig) -> None:
        """layer: the config of the target's text model, or one of the type "qwen3"."""
        config = copy(layer)
        config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
        super().__init__(config, config.vocab_size)
        layer_class, norm_class, rotary_class = layer_classes(config.model_type)
        size, eps = config.hidden_size, config.rms_norm_eps
        decoder = layer_class(self.config, 0)
        decoder.input_proj = torch.nn.Linear(2 * size, size, bias=False)
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            decoder.add_module(name, norm_class(size, eps=eps))
        self.mtp_layers = torch.nn.ModuleList([decoder])
        self.rotary_emb = rotary_class(self.config)

    def joined(self, target_states: torch.Tensor) -> torch.Tensor:
        return target_states

    def step(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, states: torch.Tensor, attend: Attend
    ) -> StepOutput:
        layer: Any = self.mtp_layers[0]
        both = torch.cat([layer.token_layernorm(self.embed_tokens(input_ids)), layer.hidden_layernorm(states)], dim=-1)
        if hasattr(self.rotary_emb, "mrope_section"):  # of time, height and width, which are the same in a text
            position_ids = position_ids.expand(3, -1, -1)
        angles = self.rotary_emb(states, position_ids)
        output = layer(layer.input_proj(both), position_embeddings=angles, attend=attend)
        normed = layer.final_layernorm(output)
        return StepOutput(normed, normed)
