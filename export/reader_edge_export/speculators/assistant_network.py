"""The network of Gemma 4's assistants: decoder layers with queries alone, over keys and values of the target."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from transformers import PretrainedConfig
from transformers.models.gemma4.modeling_gemma4 import (
    Gemma4RMSNorm,
    Gemma4TextDecoderLayer,
    Gemma4TextRotaryEmbedding,
    apply_rotary_pos_emb,
)

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.sources.weights import Weights
from reader_edge_export.speculators.centroid_head import Centroids, add_candidates
from reader_edge_export.speculators.speculator_module import SpeculatorModule, StepOutput
from reader_edge_export.speculators.text_attention import Attend, LentAttention, LentRows
from reader_edge_runtime.package.package_parts import LentPart


@dataclass(frozen=True, slots=True)
class AssistantConfig:
    """The sizes of one.

    layer: of its decoder layers, of the model type "gemma4_text" and without shared layers; vocab_size is the target's.
    state_size: of the target's states, E. lent_layers: by each of its kinds of layers, the target's layer whose keys
    and values it reads. centroids: of its head; None where that reads all tokens.
    """

    layer: PretrainedConfig
    state_size: int
    lent_layers: Mapping[str, int]
    centroids: Centroids | None = None


class AssistantModule(SpeculatorModule):
    """Layers over a projection of token and state; all nodes of a tree have the pending token's position.

    Parameters, h its own hidden size: pre_projection (h, 2 E), post_projection (E, h), layers.0.self_attn.q_proj and so
    on, norm; embed_tokens (V, E), the target's; lm_head (V, h). With centroids lm_head is theirs, (C, h), and
    candidates (V, h) has the tokens of one behind the other, whose ids are token_ids int64 (V,).
    """

    def __init__(self, assistant: AssistantConfig) -> None:
        config: Any = assistant.layer
        super().__init__(config, config.vocab_size)
        self.assistant = assistant
        self.state_size, size = assistant.state_size, config.hidden_size
        self.embed_tokens = torch.nn.Embedding(config.vocab_size, self.state_size)
        self.pre_projection = torch.nn.Linear(2 * self.state_size, size, bias=False)
        self.post_projection = torch.nn.Linear(size, self.state_size, bias=False)
        self.layers: Any = torch.nn.ModuleList(
            _layer(self.config, index, assistant) for index in range(config.num_hidden_layers)
        )
        self.norm = Gemma4RMSNorm(size, eps=config.rms_norm_eps)
        self.rotary_emb = Gemma4TextRotaryEmbedding(config)
        self.token_ids: torch.Tensor
        if assistant.centroids is not None:
            self.lm_head = torch.nn.Linear(size, assistant.centroids.number, bias=False)
            self.candidates = torch.nn.Linear(size, config.vocab_size, bias=False)
            self.register_buffer("token_ids", torch.arange(config.vocab_size), persistent=False)

    @property
    def num_layers(self) -> int:
        return 0

    @property
    def kv_sizes(self) -> tuple[int, int]:
        return self.layers[0].self_attn.num_kv_heads, self.layers[0].self_attn.head_dim

    @property
    def lent(self) -> LentPart:
        windows = [layer.self_attn.sliding_window for layer in self.layers]
        return LentPart(tuple(sorted(self.lent_sizes)), next(filter(None, windows), None))

    @property
    def lent_sizes(self) -> dict[int, tuple[int, int]]:
        attentions = (layer.self_attn for layer in self.layers)
        return {each.lent_layer: (each.num_kv_heads, each.head_dim) for each in attentions}

    def text_attention(self, lent: LentRows) -> LentAttention:
        return LentAttention(lent)

    @property
    def draft_vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def num_named(self) -> int:
        centroids = self.assistant.centroids
        return self.draft_vocab_size if centroids is None else centroids.num_named(self.draft_vocab_size)

    def joined(self, target_states: torch.Tensor) -> torch.Tensor:
        return target_states

    def step(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, states: torch.Tensor, attend: Attend
    ) -> StepOutput:
        tokens = self.embed_tokens(input_ids) * self.state_size**0.5  # as Gemma's layers read them
        rows = self.pre_projection(torch.cat([tokens, states], dim=-1))
        angles = {kind: self.rotary_emb(rows, position_ids, kind) for kind in self.rotary_emb.layer_types}
        for layer in self.layers:
            rows = layer(rows, position_embeddings=angles[layer.self_attn.layer_type], attend=attend)
        read = self.norm(rows)
        return StepOutput(read, self.post_projection(read))

    def scores(self, read: torch.Tensor) -> torch.Tensor:
        """Of centroids (B, R, C) where there are any, by what the head reads (B, R, h); else logits (B, R, V)."""
        scores: torch.Tensor = self.lm_head(read)
        return scores

    def logits(self, read: torch.Tensor) -> torch.Tensor:
        """(B, R, V), minus infinity of tokens that are not named."""
        scores, centroids = self.scores(read), self.assistant.centroids
        if centroids is None:
            return scores
        by_centroid = (centroids.number, -1)
        rows, chosen = read.flatten(end_dim=-2), scores.topk(centroids.num_chosen).indices.flatten(end_dim=-2)
        candidates, ids = self.candidates.weight.unflatten(0, by_centroid), self.token_ids.unflatten(0, by_centroid)
        logits = torch.full((len(rows), self.draft_vocab_size), float("-inf"))
        for row, best, named in zip(rows, chosen, logits, strict=True):  # of all rows at once they take gigabytes
            named[ids[best].flatten()] = candidates[best].flatten(end_dim=-2) @ row
        return logits.view(*read.shape[:-1], -1)

    def add_logits(self, editor: GraphEditor, weights: Weights, precision: str) -> ir.Value | None:
        centroids = self.assistant.centroids
        if centroids is None:
            return super().add_logits(editor, weights, precision)
        shape = self.draft_vocab_size, self.lm_head.in_features
        return add_candidates(editor, centroids, shape, self.token_ids.numpy(), weights, precision)


class QueryAttention(torch.nn.Module):
    """Gemma 4's attention without keys and values of its own.

    lent_layer: the target's layer whose keys and values it reads. sliding_window: of these rows, the last ones that it
    sees, or None. num_kv_heads: theirs.
    """

    def __init__(self, config: Any, index: int, assistant: AssistantConfig) -> None:
        super().__init__()
        sizes, size = config.per_layer_config[index], config.hidden_size
        self.layer_idx, self.layer_type = index, config.layer_types[index]
        self.lent_layer = assistant.lent_layers[self.layer_type]
        self.head_dim, self.num_kv_heads, self.scaling = sizes.head_dim, sizes.num_key_value_heads, 1.0
        # A distance of at most the window behind the last row, as transformers has it for these layers alone.
        self.sliding_window = config.sliding_window + 1 if self.layer_type == "sliding_attention" else None
        width = config.num_attention_heads * self.head_dim
        self.q_proj = torch.nn.Linear(size, width, bias=config.attention_bias)
        self.q_norm = Gemma4RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.o_proj = torch.nn.Linear(width, size, bias=config.attention_bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
        **_: object,
    ) -> tuple[torch.Tensor, None]:
        shape = hidden_states.shape[:-1]
        query = self.q_norm(self.q_proj(hidden_states).view(*shape, -1, self.head_dim))
        query = apply_rotary_pos_emb(query, *position_embeddings, unsqueeze_dim=2).transpose(1, 2)
        none = query[:, :, :0]
        output: torch.Tensor = self.o_proj(attend(self, query, none, none).reshape(*shape, -1))
        return output, None


def _layer(config: Any, index: int, assistant: AssistantConfig) -> torch.nn.Module:
    layer: Any = Gemma4TextDecoderLayer(config, index)
    layer.self_attn = QueryAttention(config, index, assistant)
    del layer.layer_scalar  # a buffer, and files hold it as they hold parameters
    layer.layer_scalar = torch.nn.Parameter(torch.ones(1))
    module: torch.nn.Module = layer
    return module
