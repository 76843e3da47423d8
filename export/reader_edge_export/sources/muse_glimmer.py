"""Muse Glimmer's text model with its logit head, which transformers has only beside images."""

from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig
from transformers.models.muse_glimmer.modeling_muse_glimmer import (
    MuseGlimmerPreTrainedModel,
    MuseGlimmerRMSNorm,
    MuseGlimmerTextModel,
)


class MuseGlimmerForCausalLM(MuseGlimmerPreTrainedModel):
    """A text's logits as `MuseGlimmerForConditionalGeneration` has them."""

    config_class = MuseGlimmerTextConfig

    def __init__(self, config: MuseGlimmerTextConfig) -> None:
        super().__init__(config)
        self.model = MuseGlimmerTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, MuseGlimmerRMSNorm):
                module._norm = partial(_normed, module)  # type: ignore[method-assign]
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: torch.Tensor | None = None, **others: Any) -> CausalLMOutputWithPast:
        hidden = self.model(input_ids=input_ids, **others).last_hidden_state
        cap = self.config.final_logit_softcapping
        return CausalLMOutputWithPast(
            logits=torch.tanh(self.lm_head(hidden) * self.config.output_multiplier / cap) * cap
        )


def _normed(norm: MuseGlimmerRMSNorm, x: torch.Tensor) -> torch.Tensor:
    """By a root in place of a power, as other norms, with weights of one where it has none: one operator of ONNX."""
    normed: torch.Tensor = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)
    return normed if norm.with_scale else normed * torch.ones(int(x.shape[-1]))


# Without the flag it would do nothing, for a config of transformers' own.
AutoModelForCausalLM.register(MuseGlimmerTextConfig, MuseGlimmerForCausalLM, exist_ok=True)
