"""What the networks of all formats share: their inputs, their vocabulary, and attention that is passed to them."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

from reader_edge_runtime.package.package_parts import LentPart

# (attention module, query (B, Hq, N, D), key (B, H, N, D), value (B, H, N, D)) -> (B, N, Hq, D); the module tells
# `layer_idx` and `scaling`. What nodes see, and keys of earlier ones, are the callable's own affair.
Attend = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_ATTENTION_NAME = "reader_edge_handed"


class StepOutput(NamedTuple):
    """read: what the logit head reads (B, N, E). next_states: what children take as their own states (B, N, E)."""

    read: torch.Tensor
    next_states: torch.Tensor


class LayerClasses(NamedTuple):
    """transformers' parts of a kind of decoder."""

    layer: Any
    norm: Any
    rotary: Any


def layer_classes(model_type: str) -> LayerClasses:
    """Of a config's model type, one of those that the formats allow."""
    module, name = {
        "llama": (modeling_llama, "Llama"),
        "qwen3": (modeling_qwen3, "Qwen3"),
        "qwen3_5_text": (modeling_qwen3_5, "Qwen3_5"),
        "qwen3_5_moe_text": (modeling_qwen3_5_moe, "Qwen3_5Moe"),
    }[model_type]
    rotary = f"{name}{'Text' if model_type.startswith('qwen3_5') else ''}RotaryEmbedding"
    return LayerClasses(
        getattr(module, f"{name}DecoderLayer"), getattr(module, f"{name}RMSNorm"), getattr(module, rotary)
    )


class SpeculatorModule(PreTrainedModel):
    """The network of a speculator, with the tensor names of the `speculators` package.

    state_size: E, of its own states.
    embed_tokens (V, E) and lm_head (Vd, E) may be the target's. d2t: int64 (Vd,), what is added to an id of its own
    vocabulary for the target's, and t2d: bool (V,), which of the target's it has; None where the vocabulary is the
    target's.
    """

    base_model_prefix = ""

    def __init__(self, config: PretrainedConfig, draft_vocab_size: int) -> None:
        super().__init__(config)
        self.state_size: int = config.hidden_size
        self.config: Any = copy(config)
        self.config._attn_implementation = _ATTENTION_NAME
        self.embed_tokens: torch.nn.Embedding = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head: torch.nn.Linear = torch.nn.Linear(config.hidden_size, draft_vocab_size, bias=False)
        self.d2t: torch.Tensor | None
        self.t2d: torch.Tensor | None
        is_smaller = draft_vocab_size != config.vocab_size
        self.register_buffer("d2t", torch.zeros(draft_vocab_size, dtype=torch.long) if is_smaller else None)
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool) if is_smaller else None)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        target_states: torch.Tensor,
        own_states: torch.Tensor,
        attend: Attend,
    ) -> StepOutput:
        """Ids and positions (B, N) of nodes, the first N1 of which have states of the target (B, N1, J * E_target), and
        the others the next states of their parents (B, N2, E).
        """
        states = torch.cat([self.joined(target_states), own_states], dim=1)
        return self.step(input_ids, position_ids, states, attend)

    @abstractmethod
    def joined(self, target_states: torch.Tensor) -> torch.Tensor:
        """States of the target (B, N, J * E_target) as this network has states (B, N, E)."""

    @abstractmethod
    def step(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, states: torch.Tensor, attend: Attend
    ) -> StepOutput:
        """The output for nodes, ids and positions (B, N), by the states before them (B, N, E)."""

    def logits(self, read: torch.Tensor) -> torch.Tensor:
        """Of the tokens of its own vocabulary (B, R, Vd), by what the logit head reads (B, R, E)."""
        logits: torch.Tensor = self.lm_head(read)
        return logits

    def scores(self, read: torch.Tensor) -> torch.Tensor:
        """What the logit head of a graph gives, by what it reads: the logits, unless these are made of it."""
        return self.logits(read)

    @property
    def num_layers(self) -> int:
        """Layers that attend, and so have a KV cache."""
        return int(self.config.num_hidden_layers)

    @property
    def kv_sizes(self) -> tuple[int, int]:
        """Heads of keys and values, and numbers of each."""
        return int(self.config.num_key_value_heads), int(self.config.head_dim)

    @property
    def lent(self) -> LentPart | None:
        """The keys and values of its target that it reads in the place of its own."""
        return None

    @property
    def draft_vocab_size(self) -> int:
        return len(self.lm_head.weight)

    @property
    def num_named(self) -> int:
        """Tokens that have a logit in a row."""
        return self.draft_vocab_size

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embed_tokens

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.lm_head

    @property
    def target_ids(self) -> torch.Tensor | None:
        """The target's ids (Vd,) of its own vocabulary; None where they are the same."""
        return None if self.d2t is None else self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)


class DenseAttention:
    """An `Attend` with memory. seen: bool (N, M), which of all M nodes so far, its own pass included, a node sees."""

    def __init__(self) -> None:
        self.seen = torch.ones(0, 0, dtype=torch.bool)
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def causal(cls, num_nodes: int) -> "DenseAttention":
        """Of one pass over a chain."""
        attention = cls()
        attention.seen = torch.ones(num_nodes, num_nodes, dtype=torch.bool).tril()
        return attention

    def __call__(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if module.layer_idx in self._kept:
            pairs = zip(self._kept[module.layer_idx], (key, value), strict=True)
            key, value = (torch.cat(pair, dim=2) for pair in pairs)
        self._kept[module.layer_idx] = key, value
        return attended(module, query, key, value, self.seen)


class LentAttention:
    """An `Attend` over keys and values of the target. rows: of each layer that lends, (1, H, M, D) both.

    seen: bool (N, M), of the first M rows the first ones that a node sees.
    """

    def __init__(self, rows: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.seen = torch.ones(0, 0, dtype=torch.bool)
        self._rows = rows

    @classmethod
    def causal(cls, rows: Mapping[int, tuple[torch.Tensor, torch.Tensor]], num_nodes: int) -> "LentAttention":
        """Of one pass over nodes, the first of which sees a row, and each other one more than the one before it."""
        attention = cls(rows)
        attention.seen = torch.ones(num_nodes, num_nodes, dtype=torch.bool).tril()
        return attention

    def __call__(self, module: Any, query: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        seen, num_rows = self.seen, self.seen.shape[1]
        key, value = (rows[:, :, :num_rows] for rows in self._rows[module.lent_layer])
        if module.sliding_window is not None:
            seen = seen & (torch.arange(num_rows) >= seen.sum(-1, keepdim=True) - module.sliding_window)
        return attended(module, query, key, value, seen)


def attended(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    """What queries find of the rows that they see, bool (N, M); shapes: see `Attend`."""
    group = query.shape[1] // key.shape[1]
    key, value = (rows.repeat_interleave(group, dim=1) for rows in (key, value))
    scores = query @ key.transpose(2, 3) * module.scaling
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    heads: torch.Tensor = weights @ value
    return heads.transpose(1, 2)


def _handed(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: object, *, attend: Attend, **__: object
) -> tuple[torch.Tensor, None]:
    return attend(module, query, key, value), None


AttentionInterface.register(_ATTENTION_NAME, _handed)
