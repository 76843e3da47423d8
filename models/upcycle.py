"""Makes a mixture of experts of a trained LFM2, so that proofs on one meet drafts that are accepted.

    python -m models.upcycle DENSE OUT

Each expert is the MLP of its layer without a quarter of its neurons, others for each, as sparse upcycling begins
(arXiv:2212.05055); the first layer keeps its MLP. Routers are random and nothing is trained: tokens that are alike in a
layer go through the same experts, as they do in models whose routers have learned.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from models.train_demo import SEED

NUM_EXPERTS, NUM_CHOSEN = 8, 2
NUM_DENSE_LAYERS = 1
KEPT_SHARE = 0.75  # of an expert's neurons
ROUTER_DEVIATION = 0.1


def mixture_of(dense: PreTrainedModel) -> PreTrainedModel:
    """An LFM2 MoE whose layers but for experts are those of an LFM2."""
    torch.manual_seed(SEED)
    num_neurons = dense.get_parameter("model.layers.0.feed_forward.w1.weight").shape[0]
    other = ("model_type", "architectures", "block_")  # what the mixture's class says otherwise, or does not read
    given = {key: value for key, value in dense.config.to_dict().items() if not key.startswith(other)}
    config = AutoConfig.for_model(
        "lfm2_moe",
        **given | {"intermediate_size": num_neurons},
        num_dense_layers=NUM_DENSE_LAYERS,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=NUM_CHOSEN,
        moe_intermediate_size=int(KEPT_SHARE * num_neurons),
    )
    mixture: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dense.dtype)
    mixture.load_state_dict(dense.state_dict(), strict=False)
    layers = zip(*(each.base_model.get_submodule("layers").children() for each in (dense, mixture)), strict=True)
    for old, new in itertools.islice(layers, NUM_DENSE_LAYERS, None):
        _fill(old.feed_forward, new.feed_forward)
    return mixture


@torch.no_grad()
def _fill(mlp: Any, experts: Any) -> None:
    """mlp: of an LFM2's layer. experts: of the mixture's."""
    torch.nn.init.normal_(experts.gate.weight, std=ROUTER_DEVIATION)
    num_neurons = experts.experts.down_proj.shape[2]
    for expert in range(NUM_EXPERTS):
        kept = torch.randperm(mlp.w1.weight.shape[0])[:num_neurons].sort().values
        gate_up = torch.cat([mlp.w1.weight[kept], mlp.w3.weight[kept]])
        experts.experts.gate_up_proj[expert].copy_(gate_up)
        experts.experts.down_proj[expert].copy_(mlp.w2.weight[:, kept] / KEPT_SHARE)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dense", type=Path, help="folder of models.train_family lfm2")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    mixture = mixture_of(AutoModelForCausalLM.from_pretrained(arguments.dense))
    mixture.generation_config = GenerationConfig.from_pretrained(arguments.dense)
    mixture.save_pretrained(arguments.out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(arguments.dense / name, arguments.out / name)


if __name__ == "__main__":
    main()
