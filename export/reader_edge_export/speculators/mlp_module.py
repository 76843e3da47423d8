"""MLP: one hidden layer over a state and a token's embedding, which is fed its own state from then on; no attention.

Hydra's sequential heads (arXiv 2402.05109, section 3), with the same weights for all tokens ahead.
"""

import torch
from transformers import PretrainedConfig

from reader_edge_export.speculators.speculator_module import Attend, SpeculatorModule, StepOutput


class MlpModule(SpeculatorModule):
    """Parameters: fc (I, E), of the target's state; token_gain (E,) and token_proj, of an embedding; next_proj (I, I);
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
