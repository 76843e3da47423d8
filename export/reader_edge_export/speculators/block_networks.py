"""The networks that draft a block of tokens in one pass: DFlash (arXiv 2602.06036), DFlash2, DSpark (2607.05147)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PretrainedConfig

from reader_edge_export.speculators.block_heads import CandidateSelector, MarkovHead
from reader_edge_export.speculators.speculator_module import SpeculatorModule, StepOutput, TextStates, layer_classes
from reader_edge_export.speculators.text_attention import Attend, DenseBlockAttention, LentRows
from reader_edge_runtime.errors import UnsupportedArchitectureError
from reader_edge_runtime.package.package_parts import BlockPart


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
    num_taps, group_size: of DFlash2's convolutions, 0 taps for none: rows that each reads, and numbers of a row that
    share what is added to a kernel. selector_rank, markov_rank: r of what scores a token behind another one, DFlash2's
    and DSpark's, 0 for none.
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
    num_taps: int = 0
    group_size: int = 16
    selector_rank: int = 0
    markov_rank: int = 0


class BlockModule(SpeculatorModule):
    """Decoder layers over a block of rows, which attend to states of the target's committed tokens and to each other.

    A pass has C context rows, the states of tokens committed since the last pass, then N rows of the block: the pending
    token and masks. Context rows have keys and values only, so the KV cache is a function of the target's states.
    Parameters: fc (E, J * E_target), hidden_norm, layers.{i}.self_attn.q_proj and so on, norm, lm_head, embed_tokens.
    candidate_selector: DFlash2's `CandidateSelector`, or None. markov_head: DSpark's `MarkovHead`, or None.
    """

    def __init__(self, block: BlockConfig) -> None:
        super().__init__(block.layer, block.draft_vocab_size)
        self.block_config = block
        layer_class, norm_class, rotary_class = layer_classes(self.config.model_type)
        size, eps = self.config.hidden_size, self.config.rms_norm_eps
        self.fc = torch.nn.Linear(block.num_states * block.state_size, size, bias=False)
        self.hidden_norm = norm_class(size, eps=eps)
        layers = [BlockLayer(layer_class(self.config, index), block) for index in range(self.config.num_hidden_layers)]
        for layer, is_causal, window in zip(layers, block.layer_is_causal, block.windows, strict=True):
            layer.self_attn.is_block_causal, layer.self_attn.window = is_causal, window
        self.layers = torch.nn.ModuleList(layers)
        self.norm = norm_class(size, eps=eps)
        self.rotary_emb = rotary_class(self.config)
        num_tokens, rank = self.config.vocab_size, block.markov_rank
        self.candidate_selector = (
            CandidateSelector(num_tokens, block.selector_rank, size) if block.selector_rank else None
        )
        self.markov_head = MarkovHead(num_tokens, block.draft_vocab_size, rank) if rank else None

    @property
    def block(self) -> BlockPart:
        """Raises UnsupportedArchitectureError for layers of more kinds than a graph has masks."""
        config = self.block_config
        kinds = set(zip(config.windows, config.layer_is_causal, strict=True))
        windowed = {kind for kind in kinds if kind[0]}
        if max(len(windowed), len(kinds - windowed)) > 1:
            words = ", ".join(
                f"{window or 'none'}{', causal' if is_causal else ''}" for window, is_causal in sorted(kinds)
            )
            raise UnsupportedArchitectureError(
                f"The layers of the speculator have windows of several kinds ({words}), and a graph has room for one "
                "kind beside layers without: give a speculator whose windowed layers are alike."
            )
        window, is_window_causal = next(iter(windowed), (None, False))
        return BlockPart(
            size=config.block_size,
            mask_token_id=config.mask_token_id,
            tells_next=config.drafts_from_anchor,
            is_causal=any(is_causal for _, is_causal in kinds - windowed),
            is_window_causal=is_window_causal,
            window=window,
            has_pairs=self._pair_head is not None,
        )

    @property
    def _pair_head(self) -> CandidateSelector | MarkovHead | None:
        return self.candidate_selector or self.markov_head

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
        return StepOutput(normed, normed[:, :0])

    def reads(self, text: TextStates) -> Iterator[torch.Tensor]:
        """Of blocks, as many rows of them as the text has tokens."""
        attend, start, config = self.text_attention(text.lent), 0, self.block_config
        for place in range(1, len(text.token_ids), config.block_size):
            ids = torch.tensor([[text.token_ids[place], *[config.mask_token_id] * (config.block_size - 1)]])
            attend.num_context = place - start
            positions = torch.arange(start, place + config.block_size)[None]
            read = self.step(ids, positions, self.joined(text.states[:, start:place]), attend).read
            if self.candidate_selector is not None:
                self.candidate_selector.hidden_projection(read)
            yield read
            start = place

    def text_attention(self, lent: LentRows) -> DenseBlockAttention:
        return DenseBlockAttention()

    def pair_outputs(
        self, logits: torch.Tensor, read: torch.Tensor, rows: torch.Tensor, input_ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        head = self._pair_head
        if head is None:
            return {}
        pending = input_ids[:, :1]
        top_logits, ids = logits.topk(self.top_k)
        token_ids = self.in_target(ids)
        before = torch.cat([pending[:, :, None].expand(-1, -1, self.top_k), token_ids[:, :-1]], dim=1)
        read = read.gather(1, rows[:, :, None].expand(-1, -1, read.shape[-1]))
        left, right = head.factors(before, read, ids, token_ids)
        pairs = top_logits[:, :, None] + left @ right.transpose(2, 3)
        return {"top_ids": token_ids, "top_logits": top_logits, "pair_logits": pairs}

    def logits(self, read: torch.Tensor) -> torch.Tensor:
        logits, scale, cap = super().logits(read), self.block_config.logit_scale, self.block_config.softcap
        logits = logits if scale == 1 else logits * scale
        return torch.tanh(logits / cap) * cap if cap else logits


class BlockLayer(torch.nn.Module):
    """A decoder layer over a block's rows, whose attention has keys and values of context rows too.

    Context rows are the same for all layers: no norm but that of keys is applied to them, and no MLP.
    """

    def __init__(self, layer: Any, block: BlockConfig) -> None:
        """layer: an ordinary one, whose parts become this one's."""
        super().__init__()
        self.self_attn = layer.self_attn
        self.mlp = layer.mlp
        self.input_layernorm = layer.input_layernorm
        self.post_attention_layernorm = layer.post_attention_layernorm
        sizes = block.layer.hidden_size, block.num_taps, block.group_size
        self.attention_conv, self.mlp_conv = (BlockConvolution(*sizes) if block.num_taps else None for _ in range(2))

    def forward(
        self, rows: torch.Tensor, context: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], attend: Attend
    ) -> torch.Tensor:
        """rows (B, N, E), context (B, C, E), angles of C + N rows -> (B, N, E)."""
        attended = partial(self._attended, context=context, angles=angles, attend=attend)
        rows = rows + _between(self.attention_conv, self.input_layernorm(rows), attended)
        return rows + _between(self.mlp_conv, self.post_attention_layernorm(rows), self.mlp)

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


class BlockConvolution(torch.nn.Module):
    """DFlash2's: each row is a sum of its block's rows up to itself, with kernels that it chooses, before a sublayer
    and again behind it.

    Parameters: base_kernel (2, taps, E), kernel_projection (2 * taps * E / group_size, E).
    """

    def __init__(self, size: int, num_taps: int, group_size: int) -> None:
        super().__init__()
        self.num_taps, self.group_size = num_taps, group_size
        self.base_kernel = torch.nn.Parameter(torch.empty(2, num_taps, size))
        self.kernel_projection = torch.nn.Linear(size, 2 * num_taps * (size // group_size), bias=False)

    def kernels(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, N, E) -> two times (B, N, taps, E): those before the sublayer and those behind it."""
        base = self.base_kernel.unflatten(-1, (-1, self.group_size)).flatten(0, 1)  # (2 * taps, groups, group_size)
        added = self.kernel_projection(rows).unflatten(-1, (*base.shape[:2], 1))
        kernels = (base + added).flatten(3)
        return kernels[:, :, : self.num_taps], kernels[:, :, self.num_taps :]

    def convolved(self, rows: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
        """(B, N, E), kernels (B, N, taps, E) -> (B, N, E); what is before the block is 0."""
        num_rows = rows.shape[1]
        before = torch.nn.functional.pad(rows, (0, 0, self.num_taps - 1, 0))
        taps = (before[:, self.num_taps - 1 - tap :][:, :num_rows] * kernels[:, :, tap] for tap in range(self.num_taps))
        return torch.stack(list(taps)).sum(0)


def _between(
    convolution: BlockConvolution | None, rows: torch.Tensor, sublayer: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """A sublayer, and its convolutions on both sides of it."""
    if convolution is None:
        return sublayer(rows)
    before, behind = convolution.kernels(rows)
    return convolution.convolved(sublayer(convolution.convolved(rows, before)), behind)


def _rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin
