"""The forecasting model: a decoder over patches of a scaled series, predicting how the next ones are distributed."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaModel, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from reader_edge_series.export.learned_parts import MAX_PROMPT, PATCH_SIZE
from reader_edge_series.patch_distribution import num_parameters

MODEL_TYPE = "patch_decoder"

_MAX_CONTEXT = 1024  # patches: what a node sees ends at the window
_FIRST_LAGS = (2, 20)  # behind a node lies what came a day, a week before its next patch, if values are hours
_FIRST_SHARPNESS = 2.5  # of looking there


class PatchConfig(LlamaConfig):
    """Llama's layers over patches; the other sizes are those of `PatchSizes`."""

    model_type = MODEL_TYPE
    patch_size: int = PATCH_SIZE
    num_patches: int = 1
    window: int = 96
    min_prompt: int = 24
    max_prompt: int = MAX_PROMPT

    @classmethod
    def of_sizes(cls, num_layers: int, hidden_size: int, num_patches: int) -> "PatchConfig":
        return cls(
            vocab_size=1,  # of the embedding that Llama has and patches do not need
            hidden_size=hidden_size,
            intermediate_size=3 * hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=hidden_size // 4,
            attention_bias=True,
            max_position_embeddings=_MAX_CONTEXT,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            num_patches=num_patches,
        )


class PatchModule(PreTrainedModel):
    """Parameters: inner and outer (patches become states), layers as in Llama, head."""

    config_class = PatchConfig
    config: Any
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: PatchConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.inner = torch.nn.Linear(config.patch_size, size)
        self.outer = torch.nn.Linear(size, size)
        self.model = LlamaModel(config)
        self.model.embed_tokens.requires_grad_(False)  # which nothing reads
        self.head = torch.nn.Linear(size, num_parameters(config.num_patches) * config.patch_size)
        self.post_init()  # type: ignore[no-untyped-call]
        self._look_back()

    def forward(
        self,
        patches: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """patches: (B, N, P), of chains. attention_mask: (1, 1, N, N), added to scores; None where a graph brings its
        own. The logits are the numbers of an `PatchDistribution`, (B, N, G * P).
        """
        inner = self.inner(patches)
        states = inner + self.outer(torch.nn.functional.silu(inner))
        read = self.model(
            inputs_embeds=states, position_ids=position_ids, attention_mask=attention_mask, use_cache=False
        ).last_hidden_state
        return CausalLMOutput(logits=self.head(read))

    def score(self, patches: torch.Tensor) -> torch.Tensor:
        """The logits of whole chains (B, N, P), each node of which sees its window."""
        places = torch.arange(patches.shape[1])
        behind = places[:, None] - places
        mask = torch.zeros(behind.shape).masked_fill_((behind < 0) | (behind >= self.config.window), float("-inf"))
        logits: torch.Tensor = self(patches, attention_mask=mask[None, None]).logits
        return logits

    @torch.no_grad()
    def _look_back(self) -> None:
        """Some heads begin as ones that look at lags of `_FIRST_LAGS`, which took most of a training to find.

        Keys are alike wherever they are, and queries turned back by the lag, so that rotary embeddings do the rest.
        """
        attention, size = self.model.layers[0].self_attn, self.config.head_dim
        turned = self.model.rotary_emb.inv_freq * torch.tensor(_FIRST_LAGS)[:, None]
        length = _FIRST_SHARPNESS
        attention.k_proj.bias[: size // 2] = length
        queries = length * torch.cat([turned.cos(), -turned.sin()], dim=1)
        attention.q_proj.bias[: queries.numel()] = queries.flatten()

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head
