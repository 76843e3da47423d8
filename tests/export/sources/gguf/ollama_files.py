"""Tiny models as Ollama's converter writes them (`convert/` there), every key that it has for a text model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import Tokenizer
from transformers import PretrainedConfig, PreTrainedModel

from reader_edge_export.sources.gguf.vocabulary import TokenKind
from reader_edge_runtime.arrays import Array
from tests.export.gguf_models import GGUF_MODELS, gguf_weights
from tests.export.gguf_values import Values
from tests.gguf_files import F32, byte_level, write_gguf

_PRE = {"lfm2": "lfm2", "lfm2moe": "lfm2", "qwen35": "qwen35", "qwen35moe": "qwen35", "gpt-oss": "gpt-4o"}


def write_as_ollama(
    model: PreTrainedModel,
    path: Path,
    values: Mapping[str, Any] | None = None,
    rename: Callable[[str], str] = lambda name: name,
    tensors: Mapping[str, Array | None] | None = None,
    architecture: str = "",
    kind: gguf.GGMLQuantizationType = F32,
) -> Path:
    """Write a model with the tokenizer of its folder. path: of the file, or a folder for it.

    values: added, or in place, by their keys behind the architecture; None leaves one out. tensors: likewise, by the
    names that `rename` gives. architecture: another one than today's. kind: of matrices that are one expert's alone.
    """
    config = model.config
    config.allow_global_per_layer_attribute_access = True  # of layers with a window, in Gemma 4
    known = GGUF_MODELS[config.model_type][0]
    architecture = architecture or known
    own = {**_shared(config), **_OWN[config.model_type](config), **(values or {})}
    weights = {rename(name): weight for name, weight in gguf_weights(model, known).items()} | dict(tensors or {})
    return write_gguf(
        path / "model.gguf" if path.is_dir() else path,
        architecture,
        {
            "general.file_type": 1,
            "general.quantization_version": 2,
            **_vocabulary(Path(str(model.name_or_path)), _PRE.get(known, "gpt-2"), config.vocab_size),
            **{key if key.startswith("tokenizer.") else f"{architecture}.{key}": value for key, value in own.items()},
        },
        {name: weight for name, weight in weights.items() if weight is not None},
        {name: kind for name in weights if ".mlp.experts." in name},
    )


def _vocabulary(folder: Path, pre: str, num_tokens: int) -> Values:
    """Ids as scores, and tokens without a meaning up to the number of embeddings."""
    values = byte_level(Tokenizer.from_file(str(folder / "tokenizer.json")), pre)
    num_missing = num_tokens - len(values["tokenizer.ggml.tokens"])
    values["tokenizer.ggml.tokens"] += [f"[PAD{number}]" for number in range(num_missing)]
    values["tokenizer.ggml.token_type"] += [int(TokenKind.USER_DEFINED)] * num_missing
    scores = [float(number) for number in range(num_tokens - num_missing)] + [-1.0] * num_missing
    ids = {"bos_token_id": 0, "eos_token_id": 1, "padding_token_id": 1, "unknown_token_id": 1, "eos_token_ids": [1]}
    flags = {f"add_{name}_token": False for name in ("bos", "eos", "padding", "unknown")}
    return {**values, **{f"tokenizer.ggml.{key}": value for key, value in {"scores": scores, **ids, **flags}.items()}}


def _shared(config: PretrainedConfig) -> Values:
    epsilon = config.norm_eps if config.model_type in ("lfm2", "lfm2_moe") else config.rms_norm_eps
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", 0),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": epsilon,
    }


def _lengths(config: PretrainedConfig) -> Values:
    return {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}


def _base(config: PretrainedConfig) -> Values:
    return {"rope.freq_base": config.rope_parameters["rope_theta"]}


def _usual_head_dim(config: PretrainedConfig) -> int:
    return int(config.hidden_size // config.num_attention_heads)


def _llama(config: PretrainedConfig) -> Values:
    own = {"attention.head_dim": config.head_dim, "rope.dimension_count": _usual_head_dim(config)}
    return {"vocab_size": config.vocab_size, **own, **_base(config), **_lengths(config)}


def _ministral3(config: PretrainedConfig) -> Values:
    yarn = config.rope_parameters
    return {
        "vocab_size": config.vocab_size,
        **_lengths(config),
        **_base(config),
        "rope.dimension_count": config.head_dim,
        "rope.scaling.factor": yarn["factor"],
        "rope.scaling.type": yarn["rope_type"],
        "rope.scaling.yarn_beta_fast": yarn.get("beta_fast", 0.0),
        "rope.scaling.yarn_beta_slow": yarn.get("beta_slow", 0.0),
        "rope.scaling.yarn_log_multiplier": yarn["mscale_all_dim"],
        "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
        "attention.temperature_scale": yarn["llama_4_scaling_beta"],
    }


def _gemma(config: PretrainedConfig) -> Values:
    ids = {"eot_token_id": 1, "middle_token_id": 68, "prefix_token_id": 67, "suffix_token_id": 69}
    return {**_lengths(config), **{f"tokenizer.ggml.{name}": token_id for name, token_id in ids.items()}}


def _gemma2(config: PretrainedConfig) -> Values:
    return {
        **_gemma(config),
        "attention.sliding_window": config.sliding_window,
        "attn_logit_softcapping": config.attn_logit_softcapping or 0.0,
        "final_logit_softcapping": config.final_logit_softcapping or 0.0,
    }


def _gemma3(config: PretrainedConfig) -> Values:
    rope = config.rope_parameters
    return {
        **_lengths(config),
        **_windows(config),
        "rope.local.freq_base": rope["sliding_attention"]["rope_theta"],
        "rope.freq_base": rope["full_attention"]["rope_theta"],
    }


def _windows(config: PretrainedConfig) -> Values:
    return {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
    }


def _gemma4(config: PretrainedConfig) -> Values:
    windows = _windows(config)
    windowed, rope = windows["attention.sliding_window_pattern"], config.rope_parameters
    whole = config.per_layer_config[windowed.index(False)]
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    widths = [config.intermediate_size * (1 + (layer >= first_shared)) for layer in range(len(windowed))]
    heads = [config.num_key_value_heads if is_windowed else whole.num_key_value_heads for is_windowed in windowed]
    experts = {
        "expert_count": config.num_experts,
        "expert_used_count": config.top_k_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }
    return {
        **windows,
        "feed_forward_length": widths if config.use_double_wide_mlp else config.intermediate_size,
        "attention.head_count_kv": heads,
        "attention.key_length": whole.head_dim,
        "attention.value_length": whole.head_dim,
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
        "rope.dimension_count": whole.head_dim,
        "rope.dimension_count_swa": config.head_dim,
        "final_logit_softcapping": config.final_logit_softcapping,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        **(experts if config.enable_moe_block else {}),
    }


def _gemma3n(config: PretrainedConfig) -> Values:
    """With the file's own words for the size of heads and the base of layers with a window."""
    shares = torch.tensor(config.activation_sparsity_pattern)
    return {
        **_windows(config),
        "feed_forward_length": config.intermediate_size[0],
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "head_dim": config.head_dim,
        "rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
        "rope.freq_base_local": config.rope_parameters["sliding_attention"]["rope_theta"],
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "activation_sparsity_scale": torch.distributions.Normal(0.0, 1.0).icdf(shares).tolist(),
        "altup.active_idx": config.altup_active_idx,
        "altup.correct_scale": config.altup_correct_scale,
        "altup.lr_multiplier": 1.0,
        "altup.num_inputs": config.altup_num_inputs,
    }


def _phi3(config: PretrainedConfig) -> Values:
    return {
        **_base(config),
        "rope.dimension_count": _usual_head_dim(config),
        "rope.scaling.original_context_length": 0,
        "attention.sliding_window": config.sliding_window or 0,
    }


def _qwen2(config: PretrainedConfig) -> Values:
    return {**_base(config), "rope.mrope_section": [4, 2, 2]}


def _qwen3(config: PretrainedConfig) -> Values:
    return {**_qwen2(config), **_lengths(config)}


def _qwen3_moe(config: PretrainedConfig) -> Values:
    chosen = {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
    return {**_qwen3(config), **chosen, "norm_top_k_prob": config.norm_topk_prob}


def _qwen35(config: PretrainedConfig) -> Values:
    sections = list(config.rope_parameters["mrope_section"])
    share = config.rope_parameters["partial_rotary_factor"]
    return {
        **_lengths(config),
        **_base(config),
        "rope.dimension_count": int(config.head_dim * share),
        "mrope_sections": sections,
        "rope.mrope_section": sections,
        "rope.dimension_sections": [*sections, 0],
        "rope.mrope_interleaved": True,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.v_head_reordered": True,
        "image_token_id": 7,
        "vision_start_token_id": 8,
        "vision_end_token_id": 9,
    }


def _qwen35moe(config: PretrainedConfig) -> Values:
    return {
        **_qwen35(config),
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "norm_top_k_prob": True,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
    }


def _gpt_oss(config: PretrainedConfig) -> Values:
    yarn = config.rope_parameters
    return {
        **_lengths(config),
        **_base(config),
        "expert_feed_forward_length": config.intermediate_size,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "attention.sliding_window": config.sliding_window,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": yarn["factor"],
        "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
    }


def _lfm2(config: PretrainedConfig) -> Values:
    width = 2 * config.intermediate_size // 3 * 2  # its multiplier
    head_dim = _usual_head_dim(config)
    return {
        **_base(config),
        "vocab_size": config.vocab_size,
        "feed_forward_length": width if config.model_type == "lfm2" else config.intermediate_size,
        "attention.head_count_kv": [config.num_key_value_heads * (kind != "conv") for kind in config.layer_types],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "shortconv.l_cache": config.conv_L_cache,
    }


def _lfm2_moe(config: PretrainedConfig) -> Values:
    return {
        **_lfm2(config),
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "leading_dense_block_count": config.num_dense_layers,
        "expert_gating_func": 2,
        "expert_weights_scale": config.routed_scaling_factor,
    }


def _olmo3(config: PretrainedConfig) -> Values:
    yarn = config.rope_parameters["full_attention"]
    return {
        **_windows(config),
        "rope.freq_base": yarn["rope_theta"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": yarn["factor"],
        "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
        "rope.scaling.attn_factor": yarn["attention_factor"],
    }


_OWN: dict[str, Callable[[PretrainedConfig], Values]] = {
    "llama": _llama,
    "mistral": _llama,
    "ministral3": _ministral3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "gemma3n_text": _gemma3n,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_5_text": _qwen35,
    "qwen3_5_moe_text": _qwen35moe,
    "gpt_oss": _gpt_oss,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
    "olmo3": _olmo3,
}
OLLAMA_MODELS = tuple(model_type for model_type in _OWN if model_type != "mistral")  # whose converter knows Mistral 3
