"""The network that drafts a block of tokens in one pass: DFlash (arXiv 2602.06036)."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from reader_edge_export.speculators.speculator_module import Attend, SpeculatorModule, StepOutput, layer_classes


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """The sizes and switches of one.

    layer: of its decoder layers, of the model type "qwen3"; vocab_size is the target's. draft_vocab_size: Vd.
    num_states, state_size: J states of the target, each of E_target numbers.
    block_size: rows of a pass, the pending token's and those of masks. mask_token_id: of the embedding, where it may
    lie behind the tokenizer's last token.
    layer_is_causal: of each layer, whether a row sees no later row of the block. windows: of each layer, how far back
    it sees, its own row included; 0 for all.
    drafts_from_anchor: row j guesses the token after its own, else the token in its own place.
    embedding_scale, logit_scale: what embeddings and logits are multiplied by. softcap: of logits, 0 for none.
    """

    layer: PretrainedConfig
    draft_vocab_size: int
    num_states: int
    state_size: int
    block_size: int
    mask_token_id: int
    layer_is_causal: tuple[bool, ...]
    windows: tuple[int, ...]
    drafts_from_anchor: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0


class BlockModule(SpeculatorModule):
    """Decoder layers over a block of rows, which attend to states of the target's committed tokens and to each other.

    A pass has C context rows, the states of tokens committed since the last pass, then N rows of the block: the pending
    token and masks. Context rows have keys and values only, so the KV cache is a function of the target's states.
    Parameters: fc (E, J * E_target), hidden_norm, layers.{i}.self_attn.q_proj and so on, norm, lm_head, embed_tokens.
    """

    def __init__(self, block: BlockConfig) -> None:
        super().__init__(block.layer, block.draft_vocab_size)
        self.block_config = block
        layer_class, norm_class, rotary_class = layer_classes(self.config.model_type)
        size, eps = self.config.hidden_size, self.config.rms_norm_eps
        self.fc = torch.nn.Linear(block.num_states * block.state_size, size, bias=False)
        self.hidden_norm = norm_class(size, eps=eps)
        layers = [BlockLayer(layer_class(self.config, index)) for index in range(self.config.num_hidden_layers)]
        for layer, is_causal, window in zip(layers, block.layer_is_causal, block.windows, strict=True):
            layer.self_attn.is_block_causal, layer.self_attn.window = is_causal, window
        self.layers = torch.nn.ModuleList(layers)
        self.norm = norm_class(size, eps=eps)
        self.rotary_emb = rotary_class(self.config)

    @property
    def block_size(self) -> int:
        return self.block_config.block_size

    @property
    def mask_token_id(self) -> int:
        return self.block_config.mask_token_id

    @property
    def layer_is_causal(self) -> tuple[bool, ...]:
        """Of each layer, whether a row sees no later row of the block."""
        return self.block_config.layer_is_causal

    @property
    def is_causal(self) -> bool:
        """Whether all layers are."""
        return all(self.layer_is_causal)

    @property
    def windows(self) -> tuple[int, ...]:
        """Of each layer, how far back a row sees, its own row included; 0 for all."""
        return self.block_config.windows

    @property
    def drafts_from_anchor(self) -> bool:
        """Whether row j guesses the token after its own, else the token in its own place."""
        return self.block_config.drafts_from_anchor

    def joined(self, target_states: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor = self.hidden_norm(self.fc(target_states))
        return joined

    def step(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, states: torch.Tensor, attend: Attend
    ) -> StepOutput:
        """The output for a block's rows, ids (B, N), behind context rows, states (B, C, E); positions (B, C + N)."""
        angles = self.rotary_emb(states, position_ids)
        rows, scale = self.embed_tokens(input_ids), self.block_config.embedding_scale
        rows = rows if scale == 1 else rows * scale
        for layer in self.layers:
            rows = layer(rows, states, angles, attend)
        normed = self.norm(rows)
        return StepOutput(normed, normed)

    def block(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, target_states: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """What the logit head reads (B, N, E) for a block's rows, ids (B, N).

        position_ids: (B, C + N). target_states: (B, C, J * E_target), of tokens committed since the last pass. C may be
        0, and N too.
        """
        return self.step(input_ids, position_ids, self.joined(target_states), attend).read

    def logits(self, read: torch.Tensor) -> torch.Tensor:
        logits, scale, cap = super().logits(read), self.block_config.logit_scale, self.block_config.softcap
        logits = logits if scale == 1 else logits * scale
        return torch.tanh(logits / cap) * cap if cap else logits


class BlockLayer(torch.nn.Module):
    """A decoder layer over a block's rows, whose attention has keys and values of context rows too.

    Context rows are the same for all layers: no norm but that of keys is applied to them, and no MLP.
    """

    def __init__(self, layer: Any) -> None:
        """layer: an ordinary one, whose parts become this one's."""
        super().__init__()
        self.self_attn = layer.self_attn
        self.mlp = layer.mlp
        self.input_layernorm = layer.input_layernorm
        self.post_attention_layernorm = layer.post_attention_layernorm

    def forward(
        self, rows: torch.Tensor, context: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], attend: Attend
    ) -> torch.Tensor:
        """rows (B, N, E), context (B, C, E), angles of C + N rows -> (B, N, E)."""
        rows = rows + self._attended(self.input_layernorm(rows), context, angles, attend)
        output: torch.Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return output

    def _attended(
        self, rows: torch.Tensor, context: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], attend: Attend
    ) -> torch.Tensor:
        own: Any = self.self_attn
        num_context = context.shape[1]
        every = torch.cat([context, rows], dim=1)
        query, key, value = (
            project(rows_of).unflatten(-1, (-1, own.head_dim))
            for project, rows_of in ((own.q_proj, rows), (own.k_proj, every), (own.v_proj, every))
        )
        query, key, value = own.q_norm(query).transpose(1, 2), own.k_norm(key).transpose(1, 2), value.transpose(1, 2)
        cos, sin = (angle[:, None] for angle in angles)
        query = _rotated(query, cos[:, :, num_context:], sin[:, :, num_context:])
        # Attention wants as many queries as keys: context rows have zeros, and what they find is dropped.
        unasked = query.new_zeros(query.shape[0], query.shape[1], num_context, query.shape[3])
        found = attend(own, torch.cat([unasked, query], dim=2), _rotated(key, cos, sin), value)
        attended: torch.Tensor = own.o_proj(found[:, num_context:].flatten(2))
        return attended


def _rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin


class DenseBlockAttention:
    """An `Attend` with memory for `BlockModule`: rows of the context are kept, those of blocks are not.

    num_context: C, how many of a pass's rows are context; set before each pass.
    """

    def __init__(self, num_context: int) -> None:
        self.num_context = num_context
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        num_queries = query.shape[2]
        if module.layer_idx in self._kept:
            pairs = zip(self._kept[module.layer_idx], (key, value), strict=True)
            key, value = (torch.cat(pair, dim=2) for pair in pairs)
        context = key.shape[2] - num_queries + self.num_context
        self._kept[module.layer_idx] = key[:, :, :context], value[:, :, :context]
        seen = seen_rows(key.shape[2], num_queries, module.is_block_causal, module.window)
        group = query.shape[1] // key.shape[1]
        key, value = (rows.repeat_interleave(group, dim=1) for rows in (key, value))
        scores = query @ key.transpose(2, 3) * module.scaling
        heads: torch.Tensor = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value
        return heads.transpose(1, 2)


def seen_rows(num_rows: int, num_queries: int, is_causal: bool, window: int) -> torch.Tensor:
    """bool (num_queries, num_rows): which of all rows so far, in the order of their positions, the last ones see.

    window: 0 for none. A row that is not causal sees as far ahead as back.
    """
    ahead = torch.arange(num_rows)[None] - torch.arange(num_rows - num_queries, num_rows)[:, None]
    seen = torch.ones_like(ahead, dtype=torch.bool) if not is_causal else ahead <= 0
    return seen & (ahead.abs() < window) if window else seen
