"""EAGLE-3 speculators with random weights for models of known shapes, in the format of the `speculators` package."""

import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PretrainedConfig

from reader_edge_export.speculators.eagle3_module import Eagle3Config, Eagle3Module

_NUM_STATES = 3
_WIDEST_HEAD = 128


def write_eagle3(config: PretrainedConfig, out: Path, draft_vocab_size: int) -> int:
    """Write one for a target of this config into a new folder: a layer of its heads. Returns its parameters."""
    layer = _layer(config)
    with torch.device("meta"):
        module = Eagle3Module(Eagle3Config(layer, draft_vocab_size, _NUM_STATES, config.hidden_size))
    rng = np.random.Generator(np.random.SFC64(0))
    tensors = {}
    for name, parameter in module.named_parameters():
        if "embed_tokens" not in name:  # the target's
            values = rng.standard_normal(tuple(parameter.shape), np.float32) / math.sqrt(parameter.shape[-1])
            tensors[name] = torch.from_numpy(values).bfloat16() if parameter.ndim > 1 else torch.ones(parameter.shape)
    named = np.sort(rng.permutation(config.vocab_size)[:draft_vocab_size])
    tensors["d2t"] = torch.from_numpy(named - np.arange(draft_vocab_size))
    tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
    tensors["t2d"][torch.from_numpy(named)] = True
    out.mkdir(parents=True)
    save_file(tensors, out / "model.safetensors")
    fields = {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": draft_vocab_size,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "random", "architectures": []}},
        "transformer_layer_config": layer.to_diff_dict(),
    }
    (out / "config.json").write_text(json.dumps(fields, indent=1))
    return sum(tensor.numel() for tensor in tensors.values())


def _layer(config: PretrainedConfig) -> PretrainedConfig:
    from transformers import LlamaConfig

    head_dim = min(config.hidden_size // config.num_attention_heads, _WIDEST_HEAD)
    return LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-6,
        max_position_embeddings=config.max_position_embeddings,
    )
