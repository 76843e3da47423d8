"""MTP: one decoder layer with full attention over a projection of embedding and state, as Qwen3.5 models bring it."""

from copy import copy
from typing import Any

import torch
from transformers import PretrainedConfig

from reader_edge_export.speculators.speculator_module import Attend, SpeculatorModule, StepOutput, layer_classes


class MtpModule(SpeculatorModule):
    """Parameters: mtp_layers.0.input_proj, .token_layernorm, .hidden_layernorm, .final_layernorm and those of a decoder
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
