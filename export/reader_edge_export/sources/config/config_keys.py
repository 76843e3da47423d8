"""Every key of config.json is accounted for: read by the architecture, harmless, inert at its value, or refused.

transformers drops the keys that a class does not know. A dropped key that changes the mathematics would change answers
without a word, and the check against the loaded module would not notice.
"""

import reprlib
from collections.abc import Mapping
from typing import Any

from reader_edge_export.sources.config.config_values import ENDLESS, check_value
from reader_edge_runtime.errors import UnsupportedArchitectureError

_COMMON = frozenset(
    {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"}
    | {"num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings"}
    | {"rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings"}
)
_RMS = _COMMON | {"rms_norm_eps"}
_WINDOWS = frozenset({"sliding_window", "layer_types"})
_GEMMA = _RMS | {"attention_bias", "hidden_activation"}
_GEMMA2 = _GEMMA | _WINDOWS | {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"}
_COHERE = _COMMON | {"layer_norm_eps", "attention_bias", "logit_scale"}
_EXPERTS = frozenset({"num_experts", "num_local_experts", "num_experts_per_tok"})
_LFM2 = (_COMMON - {"head_dim", "hidden_act"}) | {"norm_eps", "conv_bias", "conv_L_cache", "layer_types"}
_LFM2 = _LFM2 | {"full_attn_idxs", "tie_embedding"}
_QWEN3_5 = _RMS | {"attention_bias", "partial_rotary_factor", "layer_types", "full_attention_interval"}
_QWEN3_5 = _QWEN3_5 | {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"}
_QWEN3_5 = _QWEN3_5 | {"linear_conv_kernel_dim"}
_MAMBA = frozenset(
    {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_expand"}
    | {"mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "time_step_limit"}
)
_LATENT = (_RMS - {"head_dim", "num_key_value_heads"}) | {"attention_bias", "kv_lora_rank", "q_lora_rank"}
_LATENT = _LATENT | {"qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}
_DEEPSEEK = _LATENT | {"n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"}
_DEEPSEEK = _DEEPSEEK | {"n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace"}
_TOWER = frozenset(
    {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_channels", "patch_size"}
    | {"hidden_act"}
)
_QWEN_VISION = frozenset(
    {"depth", "hidden_size", "hidden_act", "intermediate_size", "num_heads", "in_channels", "patch_size"}
    | {"spatial_merge_size", "temporal_patch_size", "out_hidden_size", "rope_parameters"}
)
_SMOLVLM_VISION = _TOWER | {"image_size", "layer_norm_eps"}
_SMOLVLM_VISION |= {"size", "max_image_size", "use_base_siglip", "tie_word_embeddings"}  # which change nothing
READ_OF_TEXTS: dict[str, frozenset[str]] = {  # by model_type, which can be exported: the keys that say what is computed
    "llama": _RMS | {"attention_bias", "mlp_bias"},
    "mistral": _RMS | {"sliding_window"},
    "ministral3": _RMS | {"sliding_window"},
    "qwen2": _RMS | _WINDOWS | {"use_sliding_window", "max_window_layers"},
    "qwen3": _RMS | _WINDOWS | {"use_sliding_window", "max_window_layers", "attention_bias"},
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": (_GEMMA2 - {"attn_logit_softcapping"})  # which its class takes, and does not apply
    | {"rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"},
    "phi": _COMMON | {"layer_norm_eps", "partial_rotary_factor", "qk_layernorm"},
    "phi3": _RMS | {"sliding_window", "partial_rotary_factor"},
    "starcoder2": (_COMMON - {"head_dim"}) | {"norm_epsilon", "use_bias", "sliding_window"},
    "smollm3": _RMS
    | _WINDOWS
    | {"use_sliding_window", "no_rope_layers", "no_rope_layer_interval", "attention_bias", "mlp_bias"},
    "gpt2": frozenset(
        {"vocab_size", "n_positions", "n_ctx", "n_embd", "n_layer", "n_head", "n_inner", "activation_function"}
        | {"max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads", "layer_norm_epsilon"}
        | {"scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "tie_word_embeddings"}
    ),
    "granite": _RMS
    | {"attention_bias", "mlp_bias"}
    | {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"},
    "olmo2": _RMS | {"attention_bias"},
    "olmo3": _RMS | _WINDOWS | {"attention_bias"},
    "exaone4": _RMS | _WINDOWS | {"sliding_window_pattern"},
    "seed_oss": _RMS | {"attention_bias", "attention_out_bias", "mlp_bias"},
    "arcee": _RMS | {"attention_bias", "mlp_bias"},
    "hunyuan_v1_dense": _RMS | {"attention_bias"},
    "ernie4_5": _RMS | {"use_bias"},
    "glm4": _RMS | {"attention_bias", "partial_rotary_factor"},
    "internlm3": _RMS | {"attention_bias", "mlp_bias"},
    "apertus": _RMS | {"attention_bias"},
    "cohere": _COHERE,
    "cohere2": _COHERE | _WINDOWS | {"sliding_window_pattern", "layer_switch"},
    "lfm2": _LFM2 | {"block_ff_dim", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"},
    "qwen3_5_text": _QWEN3_5,
    "granitemoehybrid": _RMS
    | _MAMBA
    | {"attention_bias", "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"}
    | {"layer_types", "layers_block_type", "position_embedding_type", "shared_intermediate_size"}
    | {"num_local_experts", "num_experts_per_tok"},
    "gemma4_text": _GEMMA
    | _WINDOWS
    | {"final_logit_softcapping", "global_head_dim", "num_global_key_value_heads", "per_layer_config"}
    | {"attention_k_eq_v", "num_kv_shared_layers", "use_double_wide_mlp"}
    | {"hidden_size_per_layer_input", "vocab_size_per_layer_input"}
    | {"enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size"},
    "gemma3n_text": _GEMMA
    | _WINDOWS
    | {"final_logit_softcapping", "rope_local_base_freq", "num_kv_shared_layers", "laurel_rank"}
    | {"hidden_size_per_layer_input", "vocab_size_per_layer_input", "activation_sparsity_pattern"}
    | {f"altup_{key}" for key in ("active_idx", "correct_scale", "num_inputs")},
    "qwen3_moe": _RMS
    | {"sliding_window", "use_sliding_window", "attention_bias", "norm_topk_prob", "mlp_only_layers"}
    | _EXPERTS
    | {"moe_intermediate_size", "decoder_sparse_step"},
    "mixtral": _RMS | {"sliding_window", "num_local_experts", "num_experts_per_tok"},
    "gpt_oss": (_RMS - {"hidden_act"})  # which its class takes, and does not apply
    | _WINDOWS
    | _EXPERTS
    | {"attention_bias", "swiglu_alpha", "swiglu_limit"},
    "qwen3_5_moe_text": (_QWEN3_5 - {"intermediate_size"})
    | _EXPERTS
    | {"moe_intermediate_size", "shared_expert_intermediate_size"},
    "lfm2_moe": _LFM2
    | _EXPERTS
    | {"moe_intermediate_size", "num_dense_layers", "use_expert_bias", "routed_scaling_factor", "norm_topk_prob"},
    "deepseek_v2": _DEEPSEEK | {"mlp_bias", "topk_method"},
    "deepseek_v3": _DEEPSEEK | {"norm_topk_prob", "rope_interleave"},
    "glm4_moe_lite": _DEEPSEEK | {"norm_topk_prob", "rope_interleave", "mlp_layer_types"},
    "minicpm3": _LATENT | {"mlp_bias", "scale_emb", "scale_depth", "dim_model_base"},
    "ernie4_5_moe": (_RMS - {"head_dim"})
    | {"use_bias", "moe_num_experts", "moe_k", "moe_intermediate_size", "moe_num_shared_experts", "moe_norm_min"}
    | {"moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"},
    "qwen3_next": _QWEN3_5
    | _EXPERTS
    | {"moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob", "decoder_sparse_step"}
    | {"mlp_only_layers"},
    "falcon_h1": _RMS
    | _MAMBA
    | {"attention_bias", "mlp_bias", "projectors_bias", "mamba_d_ssm", "mamba_rms_norm", "mamba_norm_before_gate"}
    | {"embedding_multiplier", "lm_head_multiplier", "key_multiplier", "mlp_multipliers", "ssm_multipliers"}
    | {f"{part}_{way}_multiplier" for part in ("attention", "ssm") for way in ("in", "out")},
    "phimoe": _RMS | {"attention_bias", "lm_head_bias", "num_local_experts", "router_jitter_noise"},
    "nemotron_h": frozenset(
        {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"}
        | {"num_key_value_heads", "max_position_embeddings", "layer_norm_epsilon", "mlp_hidden_act", "mlp_bias"}
        | {"layer_types", "layers_block_type", "hybrid_override_pattern", "mamba_num_heads", "mamba_head_dim"}
        | {"n_groups", "ssm_state_size", "conv_kernel", "use_conv_bias", "use_bias", "mamba_hidden_act", "chunk_size"}
        | {"time_step_limit", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_latent_size"}
        | {"moe_shared_expert_intermediate_size", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor"}
    ),
    "muse_glimmer_text": (_RMS - {"hidden_act"})
    | _WINDOWS
    | {"hidden_activation", "attention_bias", "final_logit_softcapping", "qk_scale_factor", "output_multiplier"}
    | {"post_norm_eps", "layer_rope_theta"},
}
READ = {  # of towers for images too
    **READ_OF_TEXTS,
    "qwen3_5_vision": _QWEN_VISION | {"num_position_embeddings"},
    "qwen3_vl_vision": _QWEN_VISION | {"num_position_embeddings", "deepstack_visual_indexes"},
    "qwen2_5_vl_vision": _QWEN_VISION | {"window_size", "fullatt_block_indexes", "tokens_per_second"},  # of films
    "pixtral": _TOWER | {"image_size", "head_dim", "rope_theta", "rope_parameters"},
    "gemma4_vision": (_TOWER - {"num_channels", "hidden_act"})
    | {"num_key_value_heads", "head_dim", "hidden_activation", "rms_norm_eps", "attention_bias", "rope_parameters"}
    | {"max_position_embeddings", "pooling_kernel_size", "position_embedding_size", "use_clipped_linears"}
    | {"standardize", "default_output_length", "global_head_dim"},  # of which the last two change nothing
    "siglip_vision_model": _TOWER | {"image_size", "layer_norm_eps", "vision_use_head"},
    **dict.fromkeys(("smolvlm_vision", "idefics3_vision"), _SMOLVLM_VISION),
    "siglip2_vision_model": _TOWER | {"num_patches", "layer_norm_eps", "vision_use_head"},
}

# Say nothing about what is computed: where the model comes from, how it is trained, sampled, stored or loaded.
HARMLESS = frozenset(
    # metadata
    {"model_type", "architectures", "auto_map", "transformers_version", "dtype", "torch_dtype", "_name_or_path"}
    | {"name_or_path", "model_name", "_commit_hash", "license", "tokenizer_class", "language", "custom_pipelines"}
    | {"sentence_transformers", "transformers.js_config", "description", "version", "base_model", "base_model_name"}
    | {"library_name", "pipeline_tag", "tags", "created_at", "_diffusers_version"}
    | {"id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params", "prefix"}
    | {"is_llama_config", "_num_labels", "output_past", "author", "created_date", "trust_remote_code", "bos_token"}
    | {"eos_token", "pad_token", "unk_token", "max_sequence_length", "seq_length", "model_max_length"}
    # training
    | {"initializer_range", "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout"}
    | {"residual_dropout"}
    | {"classifier_dropout", "embedding_dropout", "dropout", "gradient_checkpointing", "pretraining_tp"}
    | {"hidden_dropout_prob", "attention_probs_dropout_prob", "activation_dropout", "layerdrop", "neftune_noise_alpha"}
    | {"ignore_index", "init_std", "router_aux_loss_coef", "gradient_checkpointing_kwargs", "label_smoothing"}
    | {"tf_legacy_loss", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"}
    | {"summary_use_proj", "summary_last_dropout", "use_bfloat16", "initializer_factor", "mup_initializer_range"}
    | {"time_step_min", "time_step_max", "time_step_floor", "rescale_prenorm_residual"}
    | {"init_method", "router_aux_loss_coef", "block_mlp_init_scale", "use_reentrant_checkpointing"}
    | {"block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init", "aux_loss_alpha", "seq_aux"}
    | {"input_jitter_noise", "altup_coef_clip", "altup_lr_multiplier"}
    # how it is run
    | {"use_cache", "cache_implementation", "_attn_implementation", "_attn_implementation_autoset"}
    | {"attn_implementation", "_attn_implementation_internal", "_experts_implementation", "experts_implementation"}
    | {"_experts_implementation_internal", "output_attentions", "output_hidden_states", "return_dict"}
    | {"output_router_logits", "ep_size", "num_logits_to_keep", "use_mamba_kernels", "mamba_ssm_cache_dtype"}
    | {"mtp_layers_block_type", "mtp_hybrid_override_pattern"}
    | {"use_return_dict", "torchscript", "chunk_size_feed_forward", "keys_to_ignore_at_inference"}
    | {"use_flash_attn", "flash_attn", "attn_impl", "use_cache_quantization", "use_cache_kernel"}
    | {"_flash_attn_2_enabled", "use_flash_attention", "use_flash_attention_2", "_flash_attn", "use_sdpa", "_use_sdpa"}
    | {"use_memory_efficient_attention", "use_xformers", "use_liger_kernel", "low_cpu_mem_usage", "device_map"}
    | {"use_kernels", "compile_config", "disable_compile", "base_model_tp_plan", "base_model_pp_plan"}
    # tokens, and how answers are sampled
    | {"tokenizer_model_max_length", "tokenizer_padding_side", "padding_side", "truncation_side", "tokenizer_name"}
    | {"eos_token_ids", "sep_token", "cls_token", "mask_token", "min_p", "min_new_tokens", "encoder_repetition_penalty"}
    | {"epsilon_cutoff", "eta_cutoff", "renormalize_logits", "penalty_alpha", "guidance_scale", "stop_strings"}
    | {"assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind", "num_assistant_tokens"}
    | {"num_assistant_tokens_schedule", "_pad_token_id", "eod_token_id", "org_vocab_size", "moe_capacity"}
    | {f"{name}_token_id" for name in ("bos", "eos", "pad", "sep", "cls", "mask", "unk", "decoder_start")}
    | {"forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids"}
    | {"max_length", "max_new_tokens", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"}
    | {"diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"}
    | {"no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences", "output_scores"}
    | {"return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty"}
    # other halves of a model, refused elsewhere where they are there
    | {"is_decoder", "is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size"}
    | {"tie_encoder_decoder", "quantization_config", "use_bidirectional_attention", "text_config"}
)
_HARMLESS_PREFIXES = ("unsloth_", "_unsloth_")  # what it says of itself: its version, and that it mended something
_KEYS = ("the key if it has no effect", "those keys that have no effect")
_MAX_NAMED = 40
# Change nothing at these values, and are refused at any other by architectures that do not read them.
_INERT: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "qk_layernorm", "use_sliding_window", "use_qk_norm"), (False,)),
    **dict.fromkeys(("qk_norm", "use_mrope", "use_parallel_residual", "parallel_attn", "alibi"), (False,)),
    **dict.fromkeys(("rope_interleaved", "rotary_interleaved", "use_logn_attn", "attn_output_gate"), (False,)),
    **dict.fromkeys(("causal", "is_causal", "use_rope", "scale_attn_weights"), (True,)),
    **dict.fromkeys(("use_pos_enc", "block_use_swiglu"), (True,)),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"), (1,)),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "interpolate_factor", "full_attn_mod"), (1,)),
    **dict.fromkeys(("lm_head_bias", "qkv_bias", "bias", "qk_layer_norms", "use_resampler"), (False,)),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_shared_experts", "num_nextn_predict_layers"), (0,)),
    **dict.fromkeys(("attention_multiplier", "lm_head_multiplier", "scale_emb"), (1,)),
    **dict.fromkeys(("num_experts_per_tok", "first_k_dense_replace", "mtp_num_hidden_layers"), (0,)),
    **dict.fromkeys(("num_kv_shared_layers", "attention_chunk_size"), (0,)),
    **dict.fromkeys(("attention_out_bias", "use_bias", "use_qkv_bias", "rope_interleave", "multi_query"), (False,)),
    **dict.fromkeys(("use_moe", "enable_moe_block", "apply_residual_connection_post_layernorm"), (False,)),
    "pruned_heads": ({},),
    "normalization_function": ("rmsnorm",),
    "position_embedding_type": ("rope",),
}
# By model type: what its architecture has at these values and no other. Its layers for later tokens (MTP) are left out.
_OWN_INERT: dict[str, dict[str, tuple[object, ...]]] = {
    "gpt_oss": {"hidden_act": ("silu",), "initial_context_length": (4096,)},  # the context is in rope_scaling
    "qwen3_5_text": {
        **{"attn_output_gate": (True,), "mamba_ssm_dtype": ("float32",), "mlp_only_layers": ([],)},
        **{"mtp_num_hidden_layers": tuple(range(16)), "mtp_use_dedicated_embeddings": (False, True)},
    },
}
_OWN_INERT["qwen3_5_vision"] = {"deepstack_visual_indexes": ([],)}
_OWN_INERT["qwen2_5_vl_vision"] = {"in_chans": (3,)}  # which its class has
_OWN_INERT["hunyuan_v1_dense"] = {
    **{"use_qk_norm": (True,), "use_rotary_pos_emb": (True,), "use_cla": (False,), "norm_type": ("rms",)},
    **{"cla_share_factor": tuple(range(1, 17)), "num_experts": (1,), "num_shared_expert": (1,), "moe_topk": (1,)},
}
_OWN_INERT["falcon_h1"] = {"mamba_use_mlp": (True,), "mlp_expansion_factor": tuple(range(1, 17))}
_OWN_INERT["nemotron_h"] = {  # which has no positions, and whose layers for later tokens are left out
    **{"n_shared_experts": (1,), "mamba_proj_bias": (False,), "expand": tuple(range(1, 17)), "rope_theta": (10000,)},
    **dict.fromkeys(("moe_shared_expert_overlap", "residual_in_fp32"), (False, True)),
    "tie_word_embeddings": (False,),
    "num_nextn_predict_layers": tuple(range(16)),
}
_OWN_INERT["gemma3n_text"] = {"query_pre_attn_scalar": (256,)}  # which nothing reads
_OWN_INERT["apertus"] = {"qk_norm": (True,), "post_norm": (False,)}
_OWN_INERT["ernie4_5_moe"] = {
    **{"moe_use_aux_free": (True,), "moe_gate": ("topk",), "moe_gate_act": ("softmax",)},
    "num_nextn_predict_layers": tuple(range(16)),
}
_OWN_INERT["starcoder2"] = {
    **{"activation_function": ("gelu",), "mlp_type": ("default",), "norm_type": ("layer_norm",)},
    **dict.fromkeys(("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"), (True, False)),
}
_OWN_INERT["mixtral"] = {"router_jitter_noise": (0,)}
_OWN_INERT["phimoe"] = {"num_experts_per_tok": (2,)}
_OWN_INERT["cohere"] = _OWN_INERT["cohere2"] = {
    **dict.fromkeys(("use_gated_activation", "use_parallel_block"), (True,)),
    **{"position_embedding_type": ("rope_gptj",), "use_parallel_embedding": (False,)},
    "order_of_interleaved_layers": ("local_attn_first",),
}
_OWN_INERT["qwen3_5_moe_text"] = _OWN_INERT["qwen3_5_text"]
_OWN_INERT["deepseek_v2"] = {"scoring_func": ("softmax",), "norm_topk_prob": (False,), "moe_layer_freq": (1,)}
_OWN_INERT["deepseek_v3"] = _OWN_INERT["glm4_moe_lite"] = {
    **{"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)},
    **dict.fromkeys(("num_nextn_predict_layers", "num_mtp_layers"), tuple(range(16))),
}
# By model type: keys that makers write beside others, which must say the same.
_REPEATED: dict[str, dict[str, str]] = {
    "lfm2": {
        **dict.fromkeys(("block_dim", "conv_dim", "conv_dim_out"), "hidden_size"),
        **{"num_heads": "num_attention_heads", "block_norm_eps": "norm_eps", "theta": "rope_theta"},
    },
    "gpt_oss": {"experts_per_token": "num_experts_per_tok"},
}
_REPEATED["cohere"] = _REPEATED["cohere2"] = {"use_embedding_sharing": "tie_word_embeddings"}
_REPEATED["starcoder2"] = {"layer_norm_epsilon": "norm_epsilon"}
_REPEATED["hunyuan_v1_dense"] = {"attention_head_dim": "head_dim"}
_REPEATED["lfm2_moe"] = _REPEATED["lfm2"]
for _latent_type in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3"):
    _REPEATED[_latent_type] = {"head_dim": "qk_rope_head_dim", "num_key_value_heads": "num_attention_heads"}
_REPEATED["nemotron_h"] = {
    **dict.fromkeys(("norm_eps", "rms_norm_eps"), "layer_norm_epsilon"),
    **{"attention_head_dim": "head_dim", "hidden_act": "mlp_hidden_act", "num_local_experts": "n_routed_experts"},
}
_REPEATED["qwen2_5_vl_vision"] = {"spatial_patch_size": "patch_size"}


def check_keys(config: Mapping[str, Any]) -> None:
    """Raise UnsupportedArchitectureError for a key that nothing accounts for, ExportError for a value that cannot be.

    config: what config.json holds, of a supported model type.
    """
    model_type = str(config["model_type"])
    for key, value in config.items():  # before the others, some of which are compared with these
        if key in READ[model_type]:
            check_value(model_type, key, value)
    others = {key: value for key, value in config.items() if key not in READ[model_type] and value is not None}
    unknown = {key: each for key, each in others.items() if not is_harmless(key) and not _is_inert(config, key, each)}
    if unknown:
        raise UnsupportedArchitectureError(
            f"config.json sets {named_keys(unknown)}, which a {model_type} model is not known to read: that may change "
            f"answers, so remove {_KEYS[len(unknown) > 1]}, or export the model from a form without."
        )


def is_harmless(key: str) -> bool:
    """Whether a key says nothing about what is computed, whatever its value is."""
    return key in HARMLESS or key.startswith(_HARMLESS_PREFIXES)


def named_keys(unknown: Mapping[str, object]) -> str:
    """Keys with their values, as a part of a sentence. Beside one that is harmless at another value, that value."""
    named = []
    for key, value in list(unknown.items())[:_MAX_NAMED]:
        inert = f" (which changes nothing at {_INERT[key][0]!r})" if key in _INERT else ""
        named.append(f"{key!r:.80} to {reprlib.repr(value)}{inert}")
    more = len(unknown) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _is_inert(config: Mapping[str, Any], key: str, value: object) -> bool:
    if key == "layer_types":  # of architectures whose layers are all alike
        return value == ["full_attention"] * int(config.get("num_hidden_layers", 0))
    if key == "use_sliding_window" and "sliding_window" in READ[str(config["model_type"])]:
        # The architecture has its window whatever this key says: both must say the same.
        return "sliding_window" in config and value is bool(config["sliding_window"])
    if key == "sliding_window" and type(value) is int and value >= config.get("max_position_embeddings", ENDLESS):
        return True
    if key in ("sliding_window", "max_window_layers"):
        return config.get("use_sliding_window") is False
    if key == "qk_head_dim":
        return value == sum(config.get(f"qk_{part}_head_dim") or 0 for part in ("nope", "rope"))
    if key in _REPEATED.get(str(config["model_type"]), {}):
        return config.get(_REPEATED[str(config["model_type"])][key]) == value
    values = _OWN_INERT.get(str(config["model_type"]), {}).get(key) or _INERT.get(key, ())
    return any(type(value) in (type(inert), float) and value == inert for inert in values)
