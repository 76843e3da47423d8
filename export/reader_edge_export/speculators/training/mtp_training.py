"""Training of MTP: a layer that turns the target's last state into the next one, for the target's own logit head."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config

from reader_edge_export.speculators.networks import MtpModule
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.trained_format import (
    TrainedFormat,
    TrainingInputs,
    embed,
    new_layer,
    silence,
    state_sample,
)
from reader_edge_export.speculators.training.vocabulary_tables import embedding_rows, logit_head_rows
from reader_edge_runtime.arrays import Float32Array, Int32Array
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.package_parts import MTP

_MOST_OTHERS = 2048
_LENT = ("embed_tokens.", "lm_head.")  # the target's


class MtpTraining(TrainedFormat):
    """A layer of the type "qwen3", the one of the format that is a plain decoder's."""

    name = MTP

    def untrained(self, manifest: Manifest) -> SpeculatorModule:
        module = _new(manifest)
        module.lm_head.weight = module.embed_tokens.weight  # one table: one row of it is looked up
        return module

    def begin(self, inputs: TrainingInputs) -> tuple[SpeculatorModule, torch.Tensor]:
        module = _new(inputs.package.manifest)
        embed(module, embedding_rows(inputs.package))
        module.lm_head = SampledHead(logit_head_rows(inputs.package), inputs.ids)
        layer: Any = module.mtp_layers[0]
        gains = _gains(inputs)
        with torch.no_grad():  # what the head reads is the state as it came
            layer.final_layernorm.weight.copy_(gains)
            of_token, of_state = layer.input_proj.weight.chunk(2, dim=1)
            of_token.zero_()
            of_state.copy_(torch.diag(gains.square().mean().sqrt() / gains))
        silence(layer)
        return module, torch.ones(len(gains))

    def tensors(self, module: SpeculatorModule, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: value for name, value in module.state_dict().items() if not name.startswith(_LENT)}

    def config(self, module: SpeculatorModule, state_ids: Sequence[int]) -> Mapping[str, Any]:
        return {"architectures": ["MTPDraftModel"], "num_nextn_predict_layers": 1}


def _new(manifest: Manifest) -> MtpModule:
    assert manifest.hidden_size is not None
    torch.manual_seed(0)
    return MtpModule(new_layer(Qwen3Config, manifest, manifest.hidden_size))


def _gains(inputs: TrainingInputs) -> torch.Tensor:
    """How large each number of the target's state usually is: float32 (E,)."""
    gains = state_sample(inputs).square().mean(0).sqrt()
    return gains.clamp_min(1e-3 * float(gains.max()))


class SampledHead(torch.nn.Linear):
    """The rows of a target, which are not trained: logits (..., V).

    In training, logits (..., ids + S): of these ids, and of S others, each raised by the logarithm of how many of the
    others it stands for. So what a network learns is pushed off all that it could name.
    """

    def __init__(self, rows: Float32Array, ids: Int32Array) -> None:
        """rows: (V, E)."""
        vocab_size, size = rows.shape
        super().__init__(size, vocab_size, bias=False, device="meta")
        self.weight = torch.nn.Parameter(torch.from_numpy(rows), requires_grad=False)
        others = np.setdiff1d(np.arange(vocab_size), ids)
        sample = np.random.default_rng(0).permutation(others)[:_MOST_OTHERS]
        raised = torch.zeros(len(ids) + len(sample))
        raised[len(ids) :] = math.log(len(others) / len(sample)) if len(sample) else 0.0
        self.sampled: torch.Tensor
        self.raised: torch.Tensor
        self.register_buffer("sampled", self.weight[torch.from_numpy(np.concatenate([ids, sample])).long()])
        self.register_buffer("raised", raised)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(states)
        return torch.nn.functional.linear(states, self.sampled, self.raised)
