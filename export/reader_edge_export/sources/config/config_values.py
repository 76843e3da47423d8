"""What values each key of config.json may have that an architecture reads."""

import reprlib
from collections.abc import Callable

from reader_edge_runtime.errors import ExportError

_ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "relu2", "xielu")

ENDLESS = float("inf")
MAX_EXPERTS, MAX_LAYERS = 1 << 13, 1 << 10  # each layer takes time, however small it is
MAX_ALL_EXPERTS = 1 << 17  # of all layers: each has objects of its own before its tensors are found to be there
MAX_ALTUP_INPUTS = 64
_LARGEST = (2 - 2**-23) * 2.0**127
_MAX_WHOLE = 1 << 53
_ENDLESS_IN_JSON = {"__float__": "Infinity"}  # as transformers 5 writes it


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value <= _MAX_WHOLE


def _is_number(value: object) -> bool:
    """Of those that fp32 has, in which a source is computed; PyTorch takes no whole ones beyond 64 bits."""
    largest = _MAX_WHOLE if type(value) is int else _LARGEST
    return type(value) in (int, float) and abs(value) <= largest  # type: ignore[arg-type]


def _is_positive(value: object) -> bool:
    return _is_number(value) and value > 0  # type: ignore[operator]


def _is_list_of(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(type(item) in kinds for item in value)


def _is_numbers(count: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and len(value) == count and all(map(_is_number, value))


def _is_range(value: object) -> bool:
    """Of two numbers; the second may have no limit."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    least, most = value[0], ENDLESS if value[1] == _ENDLESS_IN_JSON else value[1]
    return type(least) in (int, float) and type(most) in (int, float) and bool(0 <= least <= most)


def _is_shares(value: object) -> bool:
    return isinstance(value, list) and all(type(each) in (int, float) and 0 <= each < 1 for each in value)


def _is_list_of_layers(value: object) -> bool:
    return isinstance(value, list) and all(item in ("dense", "sparse") for item in value)


_SIZE = (f"a whole number from 0 to {_MAX_WHOLE}", lambda value: type(value) is int and 0 <= value <= _MAX_WHOLE)
_COUNT = (f"a whole number from 1 to {_MAX_WHOLE}", _is_count)
_POSITIVE = ("a number above 0", _is_positive)
_NUMBER = ("a number", _is_number)
_FLAG = ("true or false", lambda value: isinstance(value, bool))
_OBJECT = ("an object", lambda value: isinstance(value, dict))
_ACTIVATION = (f"one of {', '.join(_ACTIVATIONS)}", lambda value: value in _ACTIVATIONS)
_NAMES = ("a list of texts", _is_list_of(str))
_FLAGS = ("a list of 0 and 1", _is_list_of(int, bool))
_INDICES = ("a list of whole numbers", _is_list_of(int))
_CHUNK = ("a whole number from 1 to 1024", lambda value: _is_count(value) and value <= 1024)  # its square is allocated
_EXPERTS_COUNT = (  # what chooses them is allocated
    f"a whole number from 0 to {MAX_EXPERTS}",
    lambda value: type(value) is int and 0 <= value <= MAX_EXPERTS,
)
_TAPS = (f"a whole number from 2 to {_MAX_WHOLE}", lambda value: _is_count(value) and value != 1)

_KINDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"), _COUNT),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"), _COUNT),
    **dict.fromkeys(("sliding_window", "sliding_window_pattern", "_sliding_window_pattern", "layer_switch"), _COUNT),
    **dict.fromkeys(("original_max_position_embeddings", "no_rope_layer_interval"), _COUNT),
    "max_window_layers": _SIZE,
    **dict.fromkeys(("n_positions", "n_ctx", "n_embd", "n_layer", "n_head", "n_inner"), _COUNT),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"), _POSITIVE),
    **dict.fromkeys(("rope_theta", "rope_local_base_freq", "partial_rotary_factor"), _POSITIVE),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"), _POSITIVE),
    **dict.fromkeys(("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"), _NUMBER),
    **dict.fromkeys(("logit_scale", "qk_scale_factor", "output_multiplier"), _NUMBER),
    **dict.fromkeys(("lm_head_multiplier", "key_multiplier"), _NUMBER),
    **{f"{part}_{way}_multiplier": _NUMBER for part in ("attention", "ssm") for way in ("in", "out")},
    "mlp_multipliers": ("two numbers", _is_numbers(2)),
    "ssm_multipliers": ("five numbers", _is_numbers(5)),
    "mamba_d_ssm": _COUNT,
    **dict.fromkeys(("projectors_bias", "mamba_rms_norm", "mamba_norm_before_gate"), _FLAG),
    "post_norm_eps": _POSITIVE,
    "layer_rope_theta": ("a list of numbers", _is_list_of(int, float)),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias", "qk_layernorm", "use_sliding_window"), _FLAG),
    "lm_head_bias": _FLAG,
    "router_jitter_noise": _NUMBER,
    **dict.fromkeys(("attention_out_bias", "use_bias"), _FLAG),
    **dict.fromkeys(("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"), _FLAG),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), _OBJECT),
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"), _ACTIVATION),
    "mamba_hidden_act": _ACTIVATION,
    "layer_types": _NAMES,
    "no_rope_layers": _FLAGS,
    **dict.fromkeys(("norm_eps", "block_ffn_dim_multiplier"), _POSITIVE),
    **dict.fromkeys(("block_ff_dim", "block_multiple_of"), _COUNT),
    **dict.fromkeys(("conv_bias", "tie_embedding", "block_auto_adjust_ff_dim"), _FLAG),
    **dict.fromkeys(("conv_L_cache", "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"), _TAPS),
    **dict.fromkeys(("shared_intermediate_size", "mamba_n_heads", "mamba_n_groups", "mamba_d_state"), _COUNT),
    **dict.fromkeys(("mamba_expand", "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size"), _COUNT),
    **dict.fromkeys(("moe_latent_size", "moe_shared_expert_intermediate_size"), _COUNT),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), _CHUNK),
    "use_conv_bias": _FLAG,
    "hybrid_override_pattern": (
        "letters M, *, - and E",
        lambda value: isinstance(value, str) and set(value) <= set("M*-E"),
    ),
    **dict.fromkeys(("num_local_experts", "num_experts", "num_experts_per_tok", "moe_num_experts"), _EXPERTS_COUNT),
    "n_routed_experts": _EXPERTS_COUNT,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "decoder_sparse_step"), _COUNT),
    **dict.fromkeys(("norm_topk_prob", "use_expert_bias"), _FLAG),
    **dict.fromkeys(("swiglu_alpha", "swiglu_limit", "routed_scaling_factor"), _POSITIVE),
    **dict.fromkeys(("num_dense_layers", "first_k_dense_replace", "moe_layer_start_index"), _SIZE),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim", "dim_model_base"), _COUNT),
    "qk_rope_head_dim": ("an even number above 0", lambda value: type(value) is int and value > 0 and value % 2 == 0),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group"), _COUNT),
    "topk_method": ('"greedy" or "group_limited_greedy"', lambda value: value in ("greedy", "group_limited_greedy")),
    "rope_interleave": _FLAG,
    "mlp_layer_types": ('a list of "dense" and "sparse"', _is_list_of_layers),
    **dict.fromkeys(("scale_emb", "scale_depth"), _POSITIVE),
    "moe_num_shared_experts": _SIZE,
    "moe_layer_end_index": ("a whole number, -1 or more", lambda value: type(value) is int and value >= -1),
    **dict.fromkeys(("moe_layer_interval", "moe_k"), _COUNT),
    "moe_norm_min": _POSITIVE,
    "mlp_only_layers": _INDICES,
    **dict.fromkeys(("mamba_conv_bias", "mamba_proj_bias"), _FLAG),
    "mamba_d_head": ('a whole number above 0, or "auto"', lambda value: value == "auto" or _is_count(value)),
    "position_embedding_type": ('"rope" or "nope"', lambda value: value in ("rope", "nope")),
    "layers_block_type": _NAMES,
    "time_step_limit": ("two numbers, the smaller one first", _is_range),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "full_attention_interval"), _COUNT),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), _COUNT),
    "full_attn_idxs": _INDICES,
    **dict.fromkeys(("global_head_dim", "num_global_key_value_heads", "vocab_size_per_layer_input"), _COUNT),
    **dict.fromkeys(("num_kv_shared_layers", "hidden_size_per_layer_input"), _SIZE),
    **dict.fromkeys(("attention_k_eq_v", "use_double_wide_mlp", "enable_moe_block"), _FLAG),
    "top_k_experts": _COUNT,
    "altup_num_inputs": (
        f"a whole number from 1 to {MAX_ALTUP_INPUTS}",
        lambda value: type(value) is int and 0 < value <= MAX_ALTUP_INPUTS,
    ),
    **{"altup_active_idx": _SIZE, "altup_correct_scale": _FLAG, "laurel_rank": _COUNT},
    "activation_sparsity_pattern": ("a list of numbers from 0 to below 1", _is_shares),
    "per_layer_config": _OBJECT,
    **dict.fromkeys(("depth", "num_heads", "in_channels", "patch_size", "spatial_merge_size"), _COUNT),  # of images
    **dict.fromkeys(("temporal_patch_size", "out_hidden_size", "num_position_embeddings"), _COUNT),
    **dict.fromkeys(("num_channels", "image_size", "num_patches", "window_size", "tokens_per_second"), _COUNT),
    **dict.fromkeys(("deepstack_visual_indexes", "fullatt_block_indexes"), _INDICES),
    **dict.fromkeys(("pooling_kernel_size", "position_embedding_size", "default_output_length"), _COUNT),
    **dict.fromkeys(("vision_use_head", "use_clipped_linears", "standardize", "use_base_siglip"), _FLAG),
    **dict.fromkeys(("size", "max_image_size"), _OBJECT),
}
_OWN_KINDS: dict[tuple[str, str], tuple[str, Callable[[object], bool]]] = {  # of a model type alone
    ("exaone4", "sliding_window_pattern"): (
        "a whole number, 0 or more, or letters L and G",
        lambda value: _SIZE[1](value) or (isinstance(value, str) and value != "" and set(value) <= {"L", "G"}),
    ),
    ("gemma3n_text", "intermediate_size"): (
        "a whole number above 0, or a list of such",
        lambda value: _is_count(value) or (isinstance(value, list) and all(map(_is_count, value))),
    ),
    ("gemma3n_text", "hidden_size_per_layer_input"): _COUNT,
}
# What null means the same for as leaving the key out, or means "none".
_NULLABLE = frozenset(
    {"num_key_value_heads", "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "hidden_activation"}
    | {"attn_logit_softcapping", "final_logit_softcapping", "no_rope_layers", "n_inner", "max_window_layers"}
    | {"original_max_position_embeddings", "sliding_window_pattern", "_sliding_window_pattern", "layer_switch"}
    | {"layer_rope_theta", "block_ffn_dim_multiplier", "full_attn_idxs", "position_embedding_type", "layers_block_type"}
    | {"time_step_limit", "num_global_key_value_heads", "per_layer_config", "mlp_only_layers"}
)
_OWN_NULLABLE: dict[str, frozenset[str]] = {  # by model type
    # Others have a number of their own.
    **dict.fromkeys(("llama", "mistral", "ministral3", "arcee", "hunyuan_v1_dense"), frozenset({"head_dim"})),
    "mixtral": frozenset({"head_dim"}),
    "gemma4_text": frozenset({"num_experts", "top_k_experts", "moe_intermediate_size"}),  # of those without experts
    "gemma3n_text": frozenset({"activation_sparsity_pattern"}),
    "deepseek_v2": frozenset({"q_lora_rank", "n_group", "topk_group", "num_experts_per_tok"}),
    "deepseek_v3": frozenset({"q_lora_rank"}),
    "glm4_moe_lite": frozenset({"q_lora_rank", "mlp_layer_types"}),
    "minicpm3": frozenset({"q_lora_rank", "v_head_dim", "scale_depth", "dim_model_base"}),
    "nemotron_h": frozenset({"moe_latent_size", "hybrid_override_pattern"}),
    "falcon_h1": frozenset({"head_dim", "mamba_d_ssm", "mlp_multipliers", "ssm_multipliers"}),
}


def check_value(model_type: str, key: str, value: object) -> None:
    """Raise ExportError for a value that a key cannot have."""
    if value is None and (key in _NULLABLE or key in _OWN_NULLABLE.get(model_type, ())):
        return
    words, is_usable = _OWN_KINDS.get((model_type, key)) or _KINDS[key]
    if not is_usable(value):
        shown = "null" if value is None else reprlib.repr(value)
        raise ExportError(f"config.json gives {key} as {shown}, which must be {words}: correct it.")
