"""Folders of speculators with random weights, as their makers write them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from reader_edge_export.sources.blank_model import built_config
from reader_edge_export.sources.config.hf_config import hf_config
from reader_edge_export.speculators.block_networks import BlockModule
from reader_edge_export.speculators.formats.block_folders import block_config, block_source, block_state_ids
from reader_edge_export.speculators.networks import Eagle3Config, Eagle3Module, MlpModule, MtpModule
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.train_speculator import (
    TRAINED_FORMATS,
    SpeculatorTraining,
    TrainingOptions,
)
from tests.tiny_models import VOCAB_SIZE, tiny_config

DRAFT_VOCAB_SIZE = 100
STATE_IDS = [2, 0, 1]  # of two layers, in an order of its own
HIDDEN_SIZE = 64  # of tiny models

LAYER: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
}
BLOCK: dict[str, Any] = LAYER | {  # of a DFlash
    **{"model_type": "qwen3", "architectures": ["DFlashDraftModel"], "hidden_size": HIDDEN_SIZE, "rms_norm_eps": 1e-6},
    **{"num_hidden_layers": 2, "num_target_layers": 2, "rope_theta": 10000.0, "tie_word_embeddings": True},
    **{"auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": 6},
    "dflash_config": {"mask_token_id": VOCAB_SIZE - 1, "target_layer_ids": [0, -1]},
}


def eagle3_module(layer: dict[str, Any], **switches: bool) -> Eagle3Module:
    """With a vocabulary of its own and random weights."""
    config = AutoConfig.for_model(**layer)
    module = Eagle3Module(Eagle3Config(config, DRAFT_VOCAB_SIZE, len(STATE_IDS), HIDDEN_SIZE, **switches))
    _fill(module)
    _name_ids(module)
    return module


def write_eagle3(
    folder: Path, layer: dict[str, Any] | None = None, lends_embedding: bool = False, **switches: bool
) -> Eagle3Module:
    """In the format of the `speculators` package. lends_embedding: it is the target's."""
    layer = LAYER | (layer or {})
    module = eagle3_module(layer, **switches)
    config = {
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "eagle_aux_hidden_state_layer_ids": STATE_IDS,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "tiny"}},
        "transformer_layer_config": layer,
        **{name: False for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")},
        **switches,
    }
    tensors = module.state_dict()
    if lends_embedding:
        del tensors["embed_tokens.weight"]
    write(folder, config, tensors)
    return module


def write_plain_eagle3(folder: Path) -> Eagle3Module:
    """As SafeAILab publishes them."""
    module = eagle3_module(LAYER)
    tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in module.state_dict().items()}
    beside = {"draft_vocab_size": DRAFT_VOCAB_SIZE, "architectures": ["LlamaForCausalLMEagle3"]}
    write(folder, LAYER | beside | {"eagle_aux_hidden_state_layer_ids": STATE_IDS}, tensors)
    return module


def write_mlp(folder: Path) -> MlpModule:
    """As `train-drafter` does."""
    layer = LAYER | {"hidden_size": HIDDEN_SIZE}
    module = MlpModule(AutoConfig.for_model(**layer), DRAFT_VOCAB_SIZE)
    _fill(module)
    _name_ids(module)
    beside = {"architectures": ["MLPSpeculator"], "draft_vocab_size": DRAFT_VOCAB_SIZE}
    tensors = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith("embed")}
    write(folder, {"speculators_model_type": "mlp", **beside, "transformer_layer_config": layer}, tensors)
    return module


def mtp_module(model_type: str) -> MtpModule:
    """For a tiny model, with random weights."""
    module = MtpModule(AutoConfig.for_model(**tiny_config(model_type)))
    _fill(module)
    return module


def write_mtp(folder: Path, model_type: str) -> MtpModule:
    """In the format of the `speculators` package."""
    module = mtp_module(model_type)
    config = {
        "speculators_model_type": "mtp",
        "architectures": ["MTPDraftModel"],
        "num_nextn_predict_layers": 1,
        "transformer_layer_config": tiny_config(model_type),
    }
    write(folder, config, _without_lent(module))
    return module


def add_mtp(folder: Path, model_type: str) -> MtpModule:
    """To the checkpoint of a tiny model, as its makers do."""
    module = mtp_module(model_type)
    names = {
        "mtp_layers.0.input_proj.": "mtp.fc.",
        "mtp_layers.0.final_layernorm.": "mtp.norm.",
        "mtp_layers.0.hidden_layernorm.": "mtp.pre_fc_norm_hidden.",
        "mtp_layers.0.token_layernorm.": "mtp.pre_fc_norm_embedding.",
        "mtp_layers.0.": "mtp.layers.0.",
    }
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    for name, tensor in _without_lent(module).items():
        before = next(before for before in names if name.startswith(before))
        tensors[names[before] + name.removeprefix(before)] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return module


def write_block(folder: Path, changes: dict[str, Any] | None = None, **nested: Any) -> BlockModule:
    """As makers of DFlash and DSpark publish them. changes: of config.json's keys. nested: keys of dflash_config."""
    config = BLOCK | {"dflash_config": BLOCK["dflash_config"] | nested} | (changes or {})
    config = {key: value for key, value in config.items() if value is not None}
    files = block_source(folder, config, {})
    layer = built_config(hf_config(files.layer), str(folder))
    num_states = len(block_state_ids(files, layer.num_hidden_layers, 2))
    module = BlockModule(block_config(files, layer, files.draft_vocab_size or VOCAB_SIZE, num_states, HIDDEN_SIZE))
    _fill(module)
    tensors = _without_lent(module)
    if module.d2t is not None:  # and so a logit head of its own
        _name_ids(module)
        tensors |= {name: module.state_dict()[name] for name in ("d2t", "t2d", "lm_head.weight")}
    write(folder, config, tensors)
    return module


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def _without_lent(module: SpeculatorModule) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in module.state_dict().items() if not name.startswith(("embed", "lm_head"))}


def _fill(module: SpeculatorModule) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.1 * torch.randn_like(parameter) + (1.0 if parameter.ndim == 1 else 0.0))


def _name_ids(module: SpeculatorModule) -> None:
    assert module.d2t is not None
    assert module.t2d is not None
    token_ids = torch.randperm(VOCAB_SIZE)[:DRAFT_VOCAB_SIZE].sort().values
    module.d2t.copy_(token_ids - torch.arange(DRAFT_VOCAB_SIZE))
    module.t2d[token_ids] = True


def training_of(format_name: str, package: Path, out: Path, options: TrainingOptions) -> SpeculatorTraining:
    """That tells nobody of its stages."""
    return SpeculatorTraining(package, out, TRAINED_FORMATS[format_name], options, lambda phase: None)
