"""Tiny models as llama.cpp's converters would write them (`conversion/` there), in files of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from reader_edge_runtime.arrays import Array
from tests.export.gguf_values import Values, gguf_values
from tests.export.gguf_weights import gguf_weights
from tests.gguf_files import F32, byte_level, write_gguf
from tests.tiny_models import build_tiny_model, tiny_config

_KEPT = ("conv.weight", "conv1d.weight", "ssm_a", "ssm_d", "ssm_norm.weight")  # in fp32, small as they are

# model_type -> (architecture in the file, what of the tiny model the format cannot say and llama.cpp supposes)
_FULL: Values = {"use_sliding_window": False, "sliding_window": None, "layer_types": None}
GGUF_MODELS: dict[str, tuple[str, Values]] = {
    "llama": ("llama", {}),
    "mistral": ("llama", {"sliding_window": None, "head_dim": 32, "tie_word_embeddings": False}),
    "ministral3": ("mistral3", {"sliding_window": None, "tie_word_embeddings": False}),
    "qwen2": ("qwen2", _FULL),
    "qwen3": ("qwen3", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 16}),
    "gemma3_text": ("gemma3", {"query_pre_attn_scalar": 16, "rope_local_base_freq": 5000.0}),
    "phi": ("phi2", {"intermediate_size": 256, "num_key_value_heads": 4}),
    "phi3": ("phi3", {"partial_rotary_factor": 0.5}),
    "smollm3": ("smollm3", {**_FULL, "num_hidden_layers": 4}),
    "gpt2": ("gpt2", {"scale_attn_by_inverse_layer_idx": False}),
    "granite": ("granite", {"embedding_multiplier": 3.0}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo2", {}),
    "exaone4": ("exaone4", {}),
    "seed_oss": ("seed_oss", {}),
    "arcee": ("arcee", {}),
    "lfm2": ("lfm2", {}),
    "qwen3_5_text": ("qwen35", {}),
    "granitemoehybrid": ("granitehybrid", {"mamba_n_groups": 1}),
    "gemma4_text": ("gemma4", {}),
    "qwen3_moe": ("qwen3moe", {}),
    "gpt_oss": ("gpt-oss", {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}),
    "qwen3_5_moe_text": ("qwen35moe", {}),
    "lfm2_moe": ("lfm2moe", {"routed_scaling_factor": 1.0}),
}


def build_source(name: str, folder: Path, **changes: Any) -> PreTrainedModel:
    """A tiny model of TINY_MODELS that a GGUF file can hold, and its folder in Hugging Face format."""
    build_tiny_model(name, folder, **GGUF_MODELS[tiny_config(name)["model_type"]][1] | changes)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    checked: PreTrainedModel = model.eval()
    return checked


def write_model(
    model: PreTrainedModel,
    folder: Path,
    path: Path,
    kind: gguf.GGMLQuantizationType = F32,
    values: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array] | None = None,
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Write a model with the tokenizer of its folder. kind: of its matrices, kinds: of some. values, tensors: added, or
    in place.
    """
    config = model.config
    architecture = _architecture(config)
    vocabulary = byte_level(Tokenizer.from_file(str(folder / "tokenizer.json")), "gpt-2", config.vocab_size)
    special = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    own = {f"{architecture}.{key}": value for key, value in gguf_values(config).items()}
    weights = {**gguf_weights(model, architecture), **(tensors or {})}
    matrices = [name for name, weight in weights.items() if weight.ndim > 1 and not name.endswith(_KEPT)]
    all_kinds = dict.fromkeys(matrices, kind) | dict(kinds or {})
    return write_gguf(path, architecture, {**own, **vocabulary, **special, **(values or {})}, weights, all_kinds)


def _architecture(config: PretrainedConfig) -> str:
    """In the file: that of Granite 4 hangs on its layers."""
    is_granite_moe = config.model_type == "granitemoehybrid" and "linear_attention" not in config.layer_types
    return "granitemoe" if is_granite_moe else GGUF_MODELS[config.model_type][0]
