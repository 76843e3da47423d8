"""Training of the MLP: minutes, since no layer attends and its logit head is narrow."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import LlamaConfig

from reader_edge_export.speculators.networks import MlpModule
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.trained_format import (
    TrainedFormat,
    TrainingInputs,
    embed,
    few_tokens,
    name_ids,
    new_layer,
    state_sample,
)
from reader_edge_export.speculators.training.vocabulary_tables import embedding_rows, logit_head_rows
from reader_edge_runtime.arrays import Float32Array, Int32Array
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.package_parts import MLP

_INNER = 512  # numbers of its hidden layer


class MlpTraining(TrainedFormat):
    """With a vocabulary and a logit head of its own."""

    name = MLP
    shape = 32, 4  # nothing attends to more: places of many texts, and many small steps, teach more than long rows

    def untrained(self, manifest: Manifest) -> SpeculatorModule:
        few, ids, _ = few_tokens(manifest)
        return _new(few, ids)

    def begin(self, inputs: TrainingInputs) -> tuple[SpeculatorModule, torch.Tensor]:
        module, states = _new(inputs.package.manifest, inputs.ids), state_sample(inputs)
        embedding = embedding_rows(inputs.package)
        embed(module, embedding)
        scale = states.std(0) + 1e-3
        with torch.no_grad():
            module.token_gain.copy_(torch.from_numpy(1 / (embedding.std(0) + 1e-3 * embedding.std())))
            module.token_proj.bias.copy_(-module.fc.weight @ (states.mean(0) / scale))
            head = _principal(logit_head_rows(inputs.package)[inputs.ids], module.lm_head.in_features)
            module.lm_head.weight[:, : head.shape[1]] = head
        return module, scale

    def config(self, module: SpeculatorModule, state_ids: Sequence[int]) -> Mapping[str, Any]:
        return {"architectures": ["MLPSpeculator"], "draft_vocab_size": len(module.lm_head.weight)}


def _new(manifest: Manifest, ids: Int32Array) -> MlpModule:
    """ids: int32 (Vd,), that it can name, in ascending order."""
    assert manifest.hidden_size is not None
    torch.manual_seed(0)
    layer = new_layer(LlamaConfig, manifest, manifest.hidden_size)
    layer.intermediate_size = _INNER
    module = MlpModule(layer, len(ids))
    name_ids(module, ids)
    return module


def _principal(rows: Float32Array, width: int) -> torch.Tensor:
    """What differs most between the rows (Vd, E) of a logit head: (Vd, at most `width`), as large as new weights."""
    left, strengths, _ = torch.linalg.svd(torch.from_numpy(rows - rows.mean(0)), full_matrices=False)
    found: torch.Tensor = left[:, :width] * strengths[:width]
    found = found / found.std() / width**0.5
    return found
