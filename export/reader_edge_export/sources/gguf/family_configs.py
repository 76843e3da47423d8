"""What config.json would hold beside what all have: Gemma 2 to 4 and 3n, LFM2, Qwen 3.5, and mixtures of experts."""

from statistics import NormalDist

from reader_edge_export.sources.config.config_values import MAX_ALTUP_INPUTS
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.layer_sizes import (
    Config,
    head_dim_of,
    head_dim_with,
    heads,
    layer_kinds,
    layer_types_of,
    num_layers_of,
    partial_heads,
    recurrent_layers,
)
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.rope import base_of, longrope_of, original_context_of, rotary_share, rotated_share
from reader_edge_runtime.errors import UnsupportedArchitectureError

# Gemma scales its queries by this instead of the head size in its largest model, as llama.cpp knows by the layers.
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_GEMMA3N_OWN, _GEMMA3N_SPARSE, _GEMMA3N_SHARE = 20, 10, 0.95  # layers with keys of their own, and with few values left
_SIGMOID = 2  # of llama.cpp's gating functions
_SHARES = "norm_top_k_prob"  # by Ollama's converter alone
_PHI_MARGIN, _PHI_MAGNITUDE = 0.01, 1.243163121016122  # of Phi-3.5-MoE's config.json
_DOWN = ("ffn_down_exps", "mlp.experts.0.down_proj")


def gemma2(file: GgufFile, values: Metadata) -> Config:
    config = heads(file, values)
    return {
        **config,
        "query_pre_attn_scalar": _query_scalar(values, config["head_dim"], _GEMMA2_27B_LAYERS),
        "attn_logit_softcapping": values.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": values.number("final_logit_softcapping", 30.0) or None,
        "sliding_window": values.size("attention.sliding_window", 4096),
        "layer_types": layer_types_of(file, values, 2),
    }


def gemma3(file: GgufFile, values: Metadata) -> Config:
    config = heads(file, values)
    window = values.size("attention.sliding_window", 0, least=0)
    return {
        **config,
        "query_pre_attn_scalar": _query_scalar(values, config["head_dim"], _GEMMA3_27B_LAYERS),
        "final_logit_softcapping": values.number("final_logit_softcapping", 0.0) or None,
        "rope_local_base_freq": values.positive("rope.freq_base_swa", 10000.0),
        "sliding_window": window or values.size("context_length"),
        "layer_types": layer_types_of(file, values, 6) if window else ["full_attention"] * values.size("block_count"),
    }


def gemma3n(file: GgufFile, values: Metadata) -> Config:
    """What a file leaves out is as llama.cpp has it, which reads no share of an MLP's values that is left out."""
    num_layers = values.size("block_count")
    num_shared = values.number("attention.shared_kv_layers", max(num_layers - _GEMMA3N_OWN, 0))  # often as a float
    if num_shared not in range(num_layers):
        raise file.error(f"gives attention.shared_kv_layers as {num_shared:g} of {num_layers} layers")
    num_inputs, active = values.size("altup.num_inputs", 4), values.size("altup.active_idx", 0, least=0)
    if not active < num_inputs <= MAX_ALTUP_INPUTS:
        raise file.error(f"gives altup.active_idx as {active} of {num_inputs} inputs, of {MAX_ALTUP_INPUTS} at most")
    return {
        **heads(file, values),
        "rope_local_base_freq": values.positive("rope.freq_base_swa", 10000.0),
        "sliding_window": values.size("attention.sliding_window"),
        "intermediate_size": values.sizes_by_layer("feed_forward_length", num_layers),
        "layer_types": layer_types_of(file, values, 5),
        "final_logit_softcapping": values.positive("final_logit_softcapping", 30.0),
        "num_kv_shared_layers": int(num_shared),
        "altup_num_inputs": num_inputs,
        "altup_active_idx": active,
        "altup_correct_scale": values.flag("altup.correct_scale", True),
        "activation_sparsity_pattern": _shares(values, num_layers),
        "laurel_rank": _num_rows(file, "blk.0.laurel_l.weight"),
        "hidden_size_per_layer_input": values.size("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": _num_rows(file, "per_layer_token_embd.weight"),
    }


def _shares(values: Metadata, num_layers: int) -> list[float]:
    """Of values that each layer's MLP leaves out, which files give as quantiles of a normal distribution."""
    if not values.has("activation_sparsity_scale"):
        return [_GEMMA3N_SHARE if layer < _GEMMA3N_SPARSE else 0.0 for layer in range(num_layers)]
    quantiles = values.numbers("activation_sparsity_scale", lambda value: _share(value) < 1)
    return [_share(quantile) for quantile in quantiles]


def _share(quantile: float) -> float:
    return round(NormalDist().cdf(quantile), 6)


def _num_rows(file: GgufFile, name: str) -> int:
    if name not in file.tensors:
        raise file.error(f"lacks the tensor {name}", "give the file of a whole model")
    return file.tensors[name].shape[0]


def gemma4(file: GgufFile, values: Metadata) -> Config:
    """Layers with a window have sizes of their own, by keys that end in _swa; the others' are the plain ones."""
    num_layers, layer_types = values.size("block_count"), layer_types_of(file, values, 6)
    whole = layer_types.index("full_attention") if "full_attention" in layer_types else 0
    head_dim, windowed_dim = (head_dim_with(file, values, end) for end in ("", "_swa"))
    if values.size("rope.dimension_count", head_dim) != head_dim:
        raise file.error("rotates only a part of each head by its sizes, not by factors")
    if values.size("rope.dimension_count_swa", windowed_dim) != windowed_dim:
        raise file.error("rotates only a part of the heads of layers with a window")
    num_kv_heads = values.sizes_by_layer("attention.head_count_kv", num_layers, values.size("attention.head_count"))
    num_shared = values.size("attention.shared_kv_layers", 0, least=0)
    widths = values.sizes_by_layer("feed_forward_length", num_layers)
    is_wide = len(set(widths)) > 1
    wanted = [widths[0] * (2 if is_wide and layer >= num_layers - num_shared else 1) for layer in range(num_layers)]
    if widths != wanted:
        raise UnsupportedArchitectureError(f"'{file.path}' has MLPs of {sorted(set(widths))} values in turn.")
    has_values = f"blk.{whole}.attn_v.weight" in file.tensors
    return {
        "head_dim": windowed_dim,
        "global_head_dim": head_dim,
        "num_global_key_value_heads": None if has_values else num_kv_heads[whole],
        "attention_k_eq_v": not has_values,
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": values.positive("rope.freq_base"),
                "partial_rotary_factor": rotated_share(file, head_dim),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": values.positive("rope.freq_base_swa")},
        },
        "final_logit_softcapping": values.number("final_logit_softcapping", 0.0) or None,
        "sliding_window": values.size("attention.sliding_window"),
        "layer_types": layer_types,
        "num_kv_shared_layers": num_shared,
        "use_double_wide_mlp": is_wide,
        "hidden_size_per_layer_input": values.size("embedding_length_per_layer_input", least=0),
        "vocab_size_per_layer_input": file.tensors["token_embd.weight"].shape[0],
        **_gemma4_experts(values),
    }


def _gemma4_experts(values: Metadata) -> Config:
    """Beside the MLP of a layer, in files that have any."""
    num_experts = values.size("expert_count", 0, least=0)
    if not num_experts:
        return {}
    return {
        "enable_moe_block": True,
        "num_experts": num_experts,
        "top_k_experts": values.size("expert_used_count"),
        "moe_intermediate_size": values.size("expert_feed_forward_length"),
    }


def _query_scalar(values: Metadata, head_dim: int, num_layers_of_27b: int) -> int:
    is_27b = values.size("block_count") == num_layers_of_27b
    return values.size("embedding_length") // values.size("attention.head_count") if is_27b else head_dim


def lfm2(file: GgufFile, values: Metadata) -> Config:
    config = heads(file, values)
    del config["head_dim"]
    return {
        **config,
        "norm_eps": config.pop("rms_norm_eps"),
        "conv_L_cache": values.size("shortconv.l_cache", least=2),
        "conv_bias": any(name.endswith("shortconv.conv.bias") for name in file.tensors),
        "layer_types": layer_kinds(file, values, "conv"),
        "block_auto_adjust_ff_dim": False,  # the file has the size that it comes to
    }


def qwen35(file: GgufFile, values: Metadata) -> Config:
    num_values, inner = values.size("ssm.time_step_rank"), values.size("ssm.inner_size")
    kinds = ("full_attention", "linear_attention")
    return {
        **partial_heads(file, values),
        "linear_conv_kernel_dim": values.size("ssm.conv_kernel", least=2),
        "linear_num_key_heads": values.size("ssm.group_count"),
        "linear_num_value_heads": num_values,
        "linear_key_head_dim": values.size("ssm.state_size"),
        "linear_value_head_dim": max(inner // num_values, 1),
        "layer_types": [kinds[is_recurrent] for is_recurrent in recurrent_layers(file, values)],
    }


def qwen3moe(file: GgufFile, values: Metadata) -> Config:
    """All layers have experts."""
    return {**heads(file, values), **_experts(file, values), "norm_topk_prob": values.flag(_SHARES, True)}


def gpt_oss(file: GgufFile, values: Metadata) -> Config:
    """What bends an expert's values, and that the range of YaRN is not rounded, is as the makers have it."""
    config = heads(file, values)
    scaling = config.pop("rope_scaling")
    if scaling is not None and scaling["rope_type"] == "yarn":
        scaling |= {"truncate": False}
    width = values.size("feed_forward_length")
    if values.size("expert_feed_forward_length", width) != width:
        raise file.error(f"gives two sizes of its experts, one of them {width}")
    return {
        **config,
        "rope_scaling": scaling,
        "attention_bias": any(f"blk.0.{name}.bias" in file.tensors for name in ("attn_q", "attn_qkv")),
        "sliding_window": values.size("attention.sliding_window"),
        "layer_types": layer_types_of(file, values, 2),
        "num_local_experts": values.size("expert_count"),
        "num_experts_per_tok": values.size("expert_used_count"),
    }


def qwen35moe(file: GgufFile, values: Metadata) -> Config:
    """All layers have experts, and one that every token goes through."""
    experts = _experts(file, values)
    if not values.flag(_SHARES, True):
        raise UnsupportedArchitectureError(
            f"'{file.path}' does not let the shares of chosen experts add up to one, as Qwen 3.5 does."
        )
    shared = values.size("expert_shared_feed_forward_length", experts["moe_intermediate_size"])
    return {**qwen35(file, values), **experts, "shared_expert_intermediate_size": shared}


def qwen3next(file: GgufFile, values: Metadata) -> Config:
    """The same, by keys of their own."""
    return {**qwen35moe(file, values), "norm_topk_prob": True}


def phimoe(file: GgufFile, values: Metadata) -> Config:
    """The margin of its router, and what LongRoPE multiplies by, are not in files: the maker's are supposed."""
    if (num_chosen := values.size("expert_used_count")) != 2:
        raise UnsupportedArchitectureError(f"'{file.path}' sends each token to {num_chosen} experts, and Phi to 2.")
    head_dim, original = head_dim_of(file, values), original_context_of(values)
    if rotary_share(file, values, head_dim) != 1:
        raise file.error("rotates only a part of each head, which Phi-MoE does not")
    scaling = longrope_of(file, values, original)
    if scaling is not None:
        scaling |= dict.fromkeys(("short_mscale", "long_mscale"), _PHI_MAGNITUDE)
    return {
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "head_dim": head_dim,
        "rope_theta": base_of(file, values),
        "rope_scaling": scaling,
        **({} if scaling is None else {"original_max_position_embeddings": original}),
        "sliding_window": values.size("attention.sliding_window", 0, least=0) or None,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "lm_head_bias": "output.bias" in file.tensors,
        "num_local_experts": values.size("expert_count"),
        "router_jitter_noise": _PHI_MARGIN,
    }


def lfm2moe(file: GgufFile, values: Metadata) -> Config:
    config = lfm2(file, values)
    del config["block_auto_adjust_ff_dim"]
    if (gating := values.size("expert_gating_func", _SIGMOID)) != _SIGMOID:
        raise UnsupportedArchitectureError(
            f"'{file.path}' chooses experts by the function {gating}, which LFM2 does not have."
        )
    return {
        **config,
        **_experts(file, values),
        "num_dense_layers": values.size("leading_dense_block_count", 0, least=0),
        "norm_topk_prob": True,
        "use_expert_bias": True,
        "routed_scaling_factor": values.positive("expert_weights_scale", 1.0),
    }


def ernie_moe(file: GgufFile, values: Metadata) -> Config:
    """The width of shared experts is a quotient of other sizes in files, which need not be theirs: tensors have it."""
    config, experts = heads(file, values), _experts(file, values)
    if config.pop("head_dim") * values.size("attention.head_count") != values.size("embedding_length"):
        raise UnsupportedArchitectureError(f"'{file.path}' has heads wider than its model, which ERNIE has not.")
    values.size("expert_shared_feed_forward_length", 0, least=0)
    return {
        **config,
        "use_bias": "blk.0.attn_q.bias" in file.tensors,
        "moe_num_experts": experts["num_experts"],
        "moe_k": experts["num_experts_per_tok"],
        "moe_intermediate_size": experts["moe_intermediate_size"],
        "moe_num_shared_experts": values.size("expert_shared_count", 0, least=0),
        "moe_layer_start_index": values.size("leading_dense_block_count", 0, least=0),
        "moe_layer_interval": values.size("interleave_moe_layer_step", 1),
    }


def _experts(file: GgufFile, values: Metadata) -> dict[str, int]:
    """The width of each is that of the last layer's where a file does not give it."""
    last = f"blk.{num_layers_of(file, values) - 1}"
    stored = (file.tensors.get(f"{last}.{name}.weight") for name in _DOWN)
    width = next((tensor.shape[-1] for tensor in stored if tensor is not None), None)
    return {
        "num_experts": values.size("expert_count"),
        "num_experts_per_tok": values.size("expert_used_count"),
        "moe_intermediate_size": values.size("expert_feed_forward_length", width),
    }
