"""Training of MTP: a layer that turns the target's last state into the next one, for the target's own logit head."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config

from reader_edge_export.speculators.mtp_module import MtpModule
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.new_network import check_reported, embed, new_layer, silence
from reader_edge_export.speculators.training.sampled_head import SampledHead
from reader_edge_export.speculators.training.trained_format import Material, TrainedFormat
from reader_edge_export.speculators.training.vocabulary_tables import embedding_rows, logit_head_rows
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.speculator_part import MTP

_PLACES = 10_000  # of answers, which tell how large the numbers of a state are
_LENT = ("embed_tokens.", "lm_head.")  # the target's


class MtpTraining(TrainedFormat):
    """A layer of the type "qwen3", the one of the format that is a plain decoder's."""

    name = MTP

    def state_ids(self, manifest: Manifest) -> tuple[int, ...]:
        last = (manifest.num_layers + 1,)  # behind the final norm
        check_reported(manifest, last)
        return last

    def untrained(self, manifest: Manifest) -> SpeculatorModule:
        module = _new(manifest)
        module.lm_head.weight = module.embed_tokens.weight  # one table: one row of it is looked up
        return module

    def begin(self, material: Material) -> tuple[SpeculatorModule, torch.Tensor]:
        module = _new(material.package.manifest)
        embed(module, embedding_rows(material.package))
        module.lm_head = SampledHead(logit_head_rows(material.package), material.ids)
        layer: Any = module.mtp_layers[0]
        gains = _gains(material)
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


def _gains(material: Material) -> torch.Tensor:
    """How large each number of the target's state usually is: float32 (E,)."""
    parts, num_places = [], 0
    for answer in material.answers:
        parts.append(answer.states)
        num_places += len(answer.states)
        if num_places >= _PLACES:
            break
    gains = torch.from_numpy(np.concatenate(parts)).float().square().mean(0).sqrt()
    return gains.clamp_min(1e-3 * float(gains.max()))
