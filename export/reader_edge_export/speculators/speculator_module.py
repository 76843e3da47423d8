"""What the networks of all formats share: their inputs, their vocabulary, and what their graphs report."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import onnx_ir as ir
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.sources.weights import Weights
from reader_edge_export.speculators.text_attention import (
    ATTENTION_NAME,
    Attend,
    DenseAttention,
    LentRows,
    TextAttention,
)
from reader_edge_runtime.package.package_parts import BlockPart, LentPart

TOP_K = 16  # tokens that a graph reports of a row, if it has so many


class StepOutput(NamedTuple):
    """read: what the logit head reads (B, N, E). next_states: what children take as their own states (B, N, E), none of
    blocks (B, 0, E).
    """

    read: torch.Tensor
    next_states: torch.Tensor


@dataclass(frozen=True, slots=True)
class TextStates:
    """Of a text's tokens.

    states: float32 (1, N, J * E), joined. best: int64 (N,), what the target says follows each. lent: of layers of the
    target.
    """

    token_ids: list[int]
    states: torch.Tensor
    best: torch.Tensor
    lent: LentRows = field(default_factory=dict)


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
        self.config._attn_implementation = ATTENTION_NAME
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

    def reads(self, text: TextStates) -> Iterator[torch.Tensor]:
        """What the logit head reads of a text (1, n, E): behind states of the target, then behind its own."""
        ids, states = torch.tensor([text.token_ids]), self.joined(text.states)
        positions = torch.arange(ids.shape[1])[None]
        for step in range(1, min(3, ids.shape[1])):
            num_nodes, first = ids.shape[1] - step, step if self.lent is None else 1
            attend = self.text_attention(text.lent)
            attend.begin_pass(num_nodes, torch.ones(num_nodes, num_nodes, dtype=torch.bool).tril())
            output = self.step(ids[:, step:], positions[:, first : first + num_nodes], states[:, :num_nodes], attend)
            states = output.next_states
            yield output.read

    def text_attention(self, lent: LentRows) -> TextAttention:
        """What passes over a text attend by. lent: what the target lends of that."""
        return DenseAttention()

    def logits(self, read: torch.Tensor) -> torch.Tensor:
        """Of the tokens of its own vocabulary (B, R, Vd), by what the logit head reads (B, R, E)."""
        logits: torch.Tensor = self.lm_head(read)
        return logits

    def scores(self, read: torch.Tensor) -> torch.Tensor:
        """What the logit head of a graph gives, by what it reads: the logits, unless these are made of it."""
        return self.logits(read)

    def add_logits(self, editor: GraphEditor, weights: Weights, precision: str) -> ir.Value | None:
        """Have a graph's output "logits", which has the scores (B, R, ...), be logits of tokens.

        precision: "fp32" or "int8". Returns the target's ids of these, (Vd,) or of each row; None where they are the
        same.
        """
        ids = self.target_ids
        return None if ids is None else editor.constant(ids.numpy(), "target_ids")

    def pair_outputs(
        self, logits: torch.Tensor, read: torch.Tensor, rows: torch.Tensor, input_ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Outputs of a graph that tells what a token before changes: "top_ids", "top_logits" and "pair_logits", see
        `reader_edge_runtime.package.package_parts`.

        logits: (B, R, Vd) of these rows, (B, R). read: (B, N, E), what the logit head reads. input_ids: (B, N).
        """
        return {}

    @property
    def num_layers(self) -> int:
        """Layers that attend, and so have a KV cache."""
        return int(self.config.num_hidden_layers)

    @property
    def kv_sizes(self) -> tuple[int, int]:
        """Heads of keys and values, and numbers of each."""
        return int(self.config.num_key_value_heads), int(self.config.head_dim)

    @property
    def block(self) -> BlockPart | None:
        """The blocks that it drafts; None where it drafts token by token."""
        return None

    @property
    def has_pairs(self) -> bool:
        """Whether it tells what a token before changes."""
        return self.block is not None and self.block.has_pairs

    @property
    def lent(self) -> LentPart | None:
        """The keys and values of its target that it reads in the place of its own."""
        return None

    @property
    def lent_sizes(self) -> Mapping[int, tuple[int, int]]:
        """Of each layer of the target that lends: heads of keys and values, and numbers of each."""
        return {}

    @property
    def draft_vocab_size(self) -> int:
        return self.lm_head.out_features

    @property
    def num_named(self) -> int:
        """Tokens that have a logit in a row."""
        return self.draft_vocab_size

    @property
    def top_k(self) -> int:
        """Tokens that a graph reports of a row."""
        return min(TOP_K, self.num_named)

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embed_tokens

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.lm_head

    @property
    def target_ids(self) -> torch.Tensor | None:
        """The target's ids (Vd,) of its own vocabulary; None where they are the same."""
        return None if self.d2t is None else self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def in_target(self, ids: torch.Tensor) -> torch.Tensor:
        """The target's ids of some of its own vocabulary, both int64 (...)."""
        target_ids = self.target_ids
        return ids if target_ids is None else target_ids[ids]
