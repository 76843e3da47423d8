"""Training of EAGLE-3: it begins by saying what the target said of the token before, which its layer corrects."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig

from reader_edge_export.heads.vocabulary_rows import hear, least_squares
from reader_edge_export.speculators.eagle3_module import Eagle3Config, Eagle3Module
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.new_network import check_reported, embed, new_layer, silence
from reader_edge_export.speculators.training.trained_format import MAX_IDS, Material, TrainedFormat
from reader_edge_export.speculators.training.vocabulary_tables import embedding_rows
from reader_edge_runtime.arrays import Float32Array, Int32Array
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.speculator_part import EAGLE3

_FIRST = 4  # places at a text's beginning, whose states are far larger than all others


class Eagle3Training(TrainedFormat):
    """With a vocabulary and a logit head of its own."""

    name = EAGLE3

    def state_ids(self, manifest: Manifest) -> tuple[int, ...]:
        last = manifest.num_layers
        wanted = tuple(sorted({min(2, last), last // 2, max(last - 3, 0)}))
        check_reported(manifest, wanted)
        return wanted

    def untrained(self, manifest: Manifest) -> SpeculatorModule:
        num_ids, num_states = min(MAX_IDS, manifest.vocab_size), len(self.state_ids(manifest))
        # A small table of embeddings: one row of it is read, however many there are.
        table = np.zeros((num_ids + 1, manifest.hidden_size or 0), np.float32)
        return _new(replace(manifest, vocab_size=len(table)), np.arange(num_ids, dtype=np.int32), table, num_states)

    def begin(self, material: Material) -> tuple[SpeculatorModule, torch.Tensor]:
        package, columns = material.package, list(material.columns)
        module = _new(package.manifest, material.ids, embedding_rows(package), len(columns))
        joined_size = module.fc.in_features
        texts = [answer.token_ids for answer in material.answers]
        heard = hear(material.target, texts, material.ids, joined_size, wants_layer_states=True)
        is_usual = heard.positions >= _FIRST
        states = heard.layer_states[columns][:, is_usual].swapaxes(0, 1).reshape(-1, joined_size)
        hidden_states, logits = heard.hidden_states[is_usual], heard.logits[is_usual]
        scale = np.maximum(states.std(0), 1e-3 * states.std())
        gains = np.sqrt(np.square(hidden_states).mean(0))
        gains = np.maximum(gains, 1e-3 * gains.max())
        with torch.no_grad():
            module.lm_head.weight.copy_(torch.from_numpy(least_squares(hidden_states, logits)))
            module.norm.weight.copy_(torch.from_numpy(gains))
            module.fc.weight.copy_(torch.from_numpy(least_squares(states / scale, hidden_states / gains)))
        silence(module.layers[0])
        return module, torch.from_numpy(scale.astype(np.float32))

    def tensors(self, module: SpeculatorModule, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        tensors = {name: value for name, value in module.state_dict().items() if name != "embed_tokens.weight"}
        return tensors | {"fc.weight": tensors["fc.weight"] / scale}

    def config(self, module: SpeculatorModule, state_ids: Sequence[int]) -> Mapping[str, Any]:
        assert isinstance(module, Eagle3Module)
        return {
            "architectures": ["Eagle3Speculator"],
            "draft_vocab_size": module.form.draft_vocab_size,
            "target_hidden_size": module.form.state_size,
            "eagle_aux_hidden_state_layer_ids": list(state_ids),
            "norm_before_residual": module.form.norm_before_residual,
        }


def _new(manifest: Manifest, ids: Int32Array, embedding: Float32Array, num_states: int) -> Eagle3Module:
    """ids: int32 (Vd,), that it can name, in ascending order. embedding: (V, E)."""
    size = embedding.shape[1]
    torch.manual_seed(0)
    module = Eagle3Module(Eagle3Config(new_layer(LlamaConfig, manifest, size), len(ids), num_states, size))
    embed(module, embedding)
    if module.d2t is not None and module.t2d is not None:
        module.d2t.copy_(torch.from_numpy(ids) - torch.arange(len(ids)))
        module.t2d[torch.from_numpy(ids).long()] = True
    return module
