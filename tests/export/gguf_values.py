"""What llama.cpp's converters write of a config.json (`conversion/` there), beside the tensors."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PretrainedConfig

Values = dict[str, Any]
_LIKE_LLAMA = (
    "llama",
    "mistral",
    "ministral3",
    "mixtral",
    "smollm3",
    "granite",
    "granitemoehybrid",
    "arcee",
    "internlm3",
    "apertus",
)
_TELLING_VOCABULARY = (*_LIKE_LLAMA, "exaone4", "lfm2", "lfm2_moe")  # where converters write vocab_size
_TELLING_ROTATED = (
    *_LIKE_LLAMA,
    "phi",
    "phi3",
    "glm4",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "qwen3_next",
    "phimoe",
)  # and rope.dimension_count


def gguf_values(config: PretrainedConfig) -> Values:
    """Of a config, by their keys behind the architecture's name; None is left out of the file."""
    config.allow_global_per_layer_attribute_access = True  # of layers with a window, in Gemma 4
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = getattr(config, "rope_parameters", {})
    rope = rope.get("full_attention", rope)
    share = rope.get("partial_rotary_factor", 1.0)
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
    }
    if config.model_type == "gemma4_text":
        return {**values, **_gemma4(config)}
    if config.model_type == "nemotron_h":
        return {**values, **_nemotron_h(config)}
    if config.model_type == "gpt2":
        epsilon = config.layer_norm_epsilon
        return {**values, "feed_forward_length": 4 * config.hidden_size, "attention.layer_norm_epsilon": epsilon}
    values |= {"attention.head_count_kv": config.num_key_value_heads}
    if hasattr(config, "intermediate_size"):  # which Qwen 3.5's mixtures have not
        values["feed_forward_length"] = config.intermediate_size
    values |= {"rope.dimension_count": int(head_dim * share)} if config.model_type in _TELLING_ROTATED else {}
    values |= {"vocab_size": config.vocab_size} if config.model_type in _TELLING_VOCABULARY else {}
    if config.model_type == "phi":
        return {**values, "attention.layer_norm_epsilon": config.layer_norm_eps}
    if config.model_type == "starcoder2":
        return {**values, "attention.layer_norm_epsilon": config.norm_epsilon, "rope.freq_base": rope["rope_theta"]}
    epsilon = config.norm_eps if config.model_type in ("lfm2", "lfm2_moe") else config.rms_norm_eps
    shared = {"attention.layer_norm_rms_epsilon": epsilon}
    shared |= {"rope.freq_base": rope["rope_theta"]} if config.model_type not in ("gemma", "gemma2") else {}
    extra = _EXTRAS[config.model_type](config) if config.model_type in _EXTRAS else {}
    has_lengths = config.to_dict().get("head_dim") is not None and config.model_type not in ("granite", "phimoe")
    lengths = {"attention.key_length": head_dim, "attention.value_length": head_dim} if has_lengths else {}
    return {**values, **shared, **lengths, **extra}


def _gemma2(config: PretrainedConfig) -> Values:
    return {
        "attn_logit_softcapping": config.attn_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
        "attention.sliding_window": config.sliding_window,
    }


def _gemma3(config: PretrainedConfig) -> Values:
    return {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
        "final_logit_softcapping": config.final_logit_softcapping,
    }


def _gemma4(config: PretrainedConfig) -> Values:
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    whole = config.per_layer_config[windowed.index(False)]
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    rope = config.rope_parameters
    return {
        "feed_forward_length": [
            config.intermediate_size * (1 + (layer >= first_shared)) for layer in range(len(windowed))
        ]
        if config.use_double_wide_mlp
        else config.intermediate_size,
        "attention.head_count_kv": [
            config.num_key_value_heads if is_windowed else whole.num_key_value_heads for is_windowed in windowed
        ],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": windowed,
        "attention.key_length": whole.head_dim,
        "attention.value_length": whole.head_dim,
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "rope.dimension_count": whole.head_dim,
        "rope.dimension_count_swa": config.head_dim,
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
        "final_logit_softcapping": config.final_logit_softcapping,
        "expert_count": config.num_experts,
        "expert_used_count": config.top_k_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }


def _gemma3n(config: PretrainedConfig) -> Values:
    return {
        **_gemma3(config),
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "altup.active_idx": config.altup_active_idx,
        "altup.num_inputs": config.altup_num_inputs,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "activation_sparsity_scale": torch.distributions.Normal(0.0, 1.0)
        .icdf(torch.tensor(config.activation_sparsity_pattern))
        .tolist(),
        "rope.freq_base_swa": None,
    }


def _phi3(config: PretrainedConfig) -> Values:
    return {
        "attention.sliding_window": config.sliding_window or 0,
        "rope.scaling.original_context_length": config.original_max_position_embeddings,
    }


def _granite(config: PretrainedConfig) -> Values:
    return {
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def _granite_hybrid(config: PretrainedConfig) -> Values:
    has_positions = config.position_embedding_type == "rope"
    heads = [config.num_key_value_heads * (kind == "full_attention") for kind in config.layer_types]
    return _granite(config) | {
        "context_length": config.max_position_embeddings if has_positions else 1 << 20,
        "attention.head_count_kv": heads,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
        "rope.scaling.finetuned": has_positions,
        **_mamba2(config),
    }


def _falcon_h1(config: PretrainedConfig) -> Values:
    return {"vocab_size": config.vocab_size, **_mamba2(config)}


def _nemotron_h(config: PretrainedConfig) -> Values:
    has_experts = "moe" in config.layer_types
    width = config.moe_intermediate_size if has_experts else config.intermediate_size
    experts = {
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_shared_count": 1,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "moe_latent_size": config.moe_latent_size,
    }
    return {
        "context_length": 1 << 20,
        "vocab_size": config.vocab_size,
        "attention.head_count_kv": [
            config.num_key_value_heads * (kind == "full_attention") for kind in config.layer_types
        ],
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        **dict.fromkeys([f"attention.layer_norm_{kind}epsilon" for kind in ("", "rms_")], config.layer_norm_epsilon),
        "feed_forward_length": [width * (kind in ("mlp", "moe")) for kind in config.layer_types],
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
        "rope.freq_base": 10000.0,
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.ssm_state_size,
        "ssm.group_count": config.n_groups,
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "ssm.time_step_rank": config.mamba_num_heads,
        **(experts if has_experts else {}),
    }


def _mamba2(config: PretrainedConfig) -> Values:
    return {
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state,
        "ssm.group_count": config.mamba_n_groups,
        "ssm.inner_size": config.mamba_n_heads * config.mamba_d_head,
        "ssm.time_step_rank": config.mamba_n_heads,
    }


def _ministral3(config: PretrainedConfig) -> Values:
    yarn = config.rope_parameters
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": yarn["factor"],
        "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
        "rope.scaling.yarn_log_multiplier": yarn["mscale_all_dim"],
        "attention.temperature_scale": yarn["llama_4_scaling_beta"],
    }


def _olmo3(config: PretrainedConfig) -> Values:
    yarn = config.rope_parameters["full_attention"]
    return {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": yarn["factor"],
        "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
    }


def _exaone4(config: PretrainedConfig) -> Values:
    if config.sliding_window is None:
        return {}
    return {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
    }


def _lfm2(config: PretrainedConfig) -> Values:
    width = int(2 * config.intermediate_size / 3 * config.block_ffn_dim_multiplier)
    return {**_convolutions(config), "feed_forward_length": width}


def _convolutions(config: PretrainedConfig) -> Values:
    return {
        "attention.head_count_kv": [config.num_key_value_heads * (kind != "conv") for kind in config.layer_types],
        "shortconv.l_cache": config.conv_L_cache,
    }


def _lfm2_moe(config: PretrainedConfig) -> Values:
    return {
        **_convolutions(config),
        **_experts(config),
        "leading_dense_block_count": config.num_dense_layers,
        "expert_gating_func": 2,
    }


def _qwen35(config: PretrainedConfig) -> Values:
    return {"rope.dimension_sections": [*config.rope_parameters["mrope_section"], 0][:4], **_delta(config)}


def _delta(config: PretrainedConfig) -> Values:
    return {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        "full_attention_interval": 4,  # whatever the layers are
        "attention.recurrent_layers": [kind == "linear_attention" for kind in config.layer_types],
    }


def _qwen35moe(config: PretrainedConfig) -> Values:
    shared = {"expert_shared_feed_forward_length": config.shared_expert_intermediate_size}
    return {**_qwen35(config), **_experts(config), **shared}


def _qwen3next(config: PretrainedConfig) -> Values:
    shared = {"expert_shared_feed_forward_length": config.shared_expert_intermediate_size}
    return {**_delta(config), **_experts(config), **shared}


def _phimoe(config: PretrainedConfig) -> Values:
    original = config.rope_parameters.get("original_max_position_embeddings", config.max_position_embeddings)
    return {
        "attention.sliding_window": config.sliding_window or 0,
        "rope.scaling.original_context_length": original,
        **_mixtral(config),
    }


def _mixtral(config: PretrainedConfig) -> Values:
    return {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}


def _experts(config: PretrainedConfig) -> Values:
    return {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }


def _ernie_moe(config: PretrainedConfig) -> Values:
    return {
        **_experts(config),
        "interleave_moe_layer_step": config.moe_layer_interval,
        "leading_dense_block_count": config.moe_layer_start_index,
        "expert_shared_count": config.moe_num_shared_experts,
        "expert_shared_feed_forward_length": config.intermediate_size // config.num_key_value_heads,
    }


def _gpt_oss(config: PretrainedConfig) -> Values:
    yarn = config.rope_parameters
    return {
        "attention.sliding_window": config.sliding_window,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": yarn["factor"],
        "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": yarn.get("beta_fast"),
        "rope.scaling.yarn_beta_slow": yarn.get("beta_slow"),
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.intermediate_size,
    }


def _deepseek2(config: PretrainedConfig) -> Values:
    """How experts are chosen is left out where config.json does so."""
    yarn, is_second = config.rope_parameters, config.model_type == "deepseek_v2"
    dense = (config.mlp_layer_types or []).count("dense") if config.model_type == "glm4_moe_lite" else None
    return {
        "attention.head_count_kv": 1,
        **_latent(config),
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "leading_dense_block_count": config.first_k_dense_replace if dense is None else dense,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": (not is_second and config.norm_topk_prob) or None,
        "expert_gating_func": {"deepseek_v2": 1, "deepseek_v3": 2}.get(config.model_type),
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "rope.scaling.type": "yarn" if yarn["rope_type"] == "yarn" else None,
        "rope.scaling.factor": yarn.get("factor"),
        "rope.scaling.original_context_length": yarn.get("original_max_position_embeddings"),
        "rope.scaling.yarn_log_multiplier": 0.1 * yarn["mscale_all_dim"] if "mscale_all_dim" in yarn else None,
    }


def _minicpm3(config: PretrainedConfig) -> Values:
    size = config.qk_nope_head_dim + config.qk_rope_head_dim
    return {**_latent(config), "attention.key_length": size, "attention.value_length": None, "rope.freq_base": None}


def _latent(config: PretrainedConfig) -> Values:
    return {
        "vocab_size": config.vocab_size,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "rope.dimension_count": config.qk_rope_head_dim,
    }


_EXTRAS: dict[str, Callable[[PretrainedConfig], Values]] = {
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma3n_text": _gemma3n,
    "phi3": _phi3,
    "granite": _granite,
    "olmo3": _olmo3,
    "exaone4": _exaone4,
    "ministral3": _ministral3,
    "lfm2": _lfm2,
    "qwen3_5_text": _qwen35,
    "granitemoehybrid": _granite_hybrid,
    "qwen3_moe": _experts,
    "gpt_oss": _gpt_oss,
    "qwen3_5_moe_text": _qwen35moe,
    "lfm2_moe": _lfm2_moe,
    "ernie4_5_moe": _ernie_moe,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), _deepseek2),
    "minicpm3": _minicpm3,
    "falcon_h1": _falcon_h1,
    "qwen3_next": _qwen3next,
    "phimoe": _phimoe,
    "mixtral": _mixtral,
}
