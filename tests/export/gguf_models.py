"""Tiny models as llama.cpp's converters would write them (`conversion/` there): names, values, changes of weights."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from reader_edge_runtime.arrays import Array
from tests.gguf_files import F32, byte_level, write_gguf
from tests.tiny_models import build_tiny_model, tiny_config

Values = dict[str, Any]
_KEPT = ("conv.weight", "conv1d.weight", "ssm_a", "ssm_d", "ssm_norm.weight")  # in fp32, small as they are
_LIKE_LLAMA = ("llama", "mistral", "ministral3", "smollm3", "granite", "granitemoehybrid", "arcee")
_TELLING_VOCABULARY = (*_LIKE_LLAMA, "exaone4", "lfm2", "lfm2_moe")  # where converters write vocab_size
_TELLING_ROTATED = (*_LIKE_LLAMA, "phi", "phi3", "qwen3_5_text", "qwen3_5_moe_text")  # and rope.dimension_count
_DELTA = ("qwen35", "qwen35moe")
_SCALES = {"scale": "ffn_gate_inp.scale", "per_expert_scale": "ffn_down_exps.scale"}
_GATED = ("ffn_gate", "ffn_up")
_PAIRED = ("llama", "mistral3", "granite", "granitehybrid", "granitemoe", "smollm3", "arcee")

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
    own = {f"{architecture}.{key}": value for key, value in _values(config).items()}  # None is left out
    weights = {**_weights(model, architecture), **(tensors or {})}
    matrices = [name for name, weight in weights.items() if weight.ndim > 1 and not name.endswith(_KEPT)]
    all_kinds = dict.fromkeys(matrices, kind) | dict(kinds or {})
    return write_gguf(path, architecture, {**own, **vocabulary, **special, **(values or {})}, weights, all_kinds)


def _architecture(config: PretrainedConfig) -> str:
    """In the file: that of Granite 4 hangs on its layers."""
    is_granite_moe = config.model_type == "granitemoehybrid" and "linear_attention" not in config.layer_types
    return "granitemoe" if is_granite_moe else GGUF_MODELS[config.model_type][0]


def _values(config: PretrainedConfig) -> Values:
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
    epsilon = config.norm_eps if config.model_type in ("lfm2", "lfm2_moe") else config.rms_norm_eps
    shared = {"attention.layer_norm_rms_epsilon": epsilon}
    shared |= {"rope.freq_base": rope["rope_theta"]} if config.model_type not in ("gemma", "gemma2") else {}
    extra = _EXTRAS[config.model_type](config) if config.model_type in _EXTRAS else {}
    has_lengths = "head_dim" in config.to_dict() and config.model_type != "granite"
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
    return {
        "rope.dimension_sections": [*config.rope_parameters["mrope_section"], 0][:4],
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


def _experts(config: PretrainedConfig) -> Values:
    return {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
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


_EXTRAS: dict[str, Callable[[PretrainedConfig], Values]] = {
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
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
}


def _weights(model: PreTrainedModel, architecture: str) -> dict[str, Array]:
    config = model.config
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", 0)}
    weights: dict[str, Array] = {}
    scalars = [(name, value) for name, value in model.named_buffers() if name.endswith(("layer_scalar", "expert_bias"))]
    for name, parameter in (*model.named_parameters(), *scalars):
        weight: Array = parameter.detach().numpy()
        if ".experts." in name:
            weights |= _of_experts(name, weight, architecture)
            continue
        module = name.split(".")[-2]
        if architecture in _PAIRED and module in heads:
            halves = weight.reshape(heads[module], 2, -1, *weight.shape[1:])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        is_shifted = architecture in _DELTA and "linear_attn" not in name
        is_shifted |= architecture in ("gemma", "gemma2", "gemma3")
        if is_shifted and name.endswith("norm.weight"):
            weight = weight + 1
        if architecture in _DELTA:
            name, weight = _as_qwen35(config, name, weight)
        if config.model_type == "granitemoehybrid":
            name, weight = _as_granite_hybrid(name, weight, has_experts=config.num_local_experts > 0)
        if architecture == "gpt2" and module in ("c_attn", "c_proj", "c_fc") and weight.ndim == 2:
            weight = weight.T
        weight = weight.squeeze(1) if weight.ndim == 3 else weight
        if module == "input_linear":
            layer = name.split(".")[2]
            weights |= {
                f"blk.{layer}.{part}{'_shexp' if config.num_local_experts else ''}.weight": rows.copy()
                for part, rows in zip(_GATED, np.split(weight, 2), strict=True)
            }
            continue
        stored = _router_scale(name) or names.get_name(name, (".weight", ".bias"))
        assert stored is not None, name
        ends = {"layer_scalar": ".weight", "sinks": ".weight", "expert_bias": ".bias"}
        weights[stored + ends.get(name.split(".")[-1], "")] = weight.copy()
    if architecture == "gemma4":
        weights |= _beside_gemma4(config)
    return weights


def _beside_gemma4(config: PretrainedConfig) -> dict[str, Array]:
    """What turns of heads in layers without a window, and keys that no layer reads, as makers' folders have them."""
    whole = config.per_layer_config[config.layer_types.index("full_attention")]
    num_turned = int(whole.head_dim * config.rope_parameters["full_attention"]["partial_rotary_factor"] / 2)
    factors = np.where(np.arange(whole.head_dim // 2) < num_turned, 1, 1e30).astype(np.float32)
    last = config.num_hidden_layers - 1
    unread = {
        f"blk.{last}.attn_k.weight": np.ones((whole.num_key_value_heads * whole.head_dim, config.hidden_size)),
        f"blk.{last}.attn_k_norm.weight": np.ones(whole.head_dim),
    }
    beside = unread if config.num_kv_shared_layers else {}
    return {"rope_freqs.weight": factors, **{name: array.astype(np.float32) for name, array in beside.items()}}


def _router_scale(name: str) -> str | None:
    """Of Gemma 4's routers, which stand with other tensors in files."""
    *_, layer, module, part = ("", "", *name.split("."))
    return f"blk.{layer}.{_SCALES[part]}" if module == "router" and part in _SCALES else None


def _of_experts(name: str, weight: Array, architecture: str) -> dict[str, Array]:
    """Matrices of experts (X, J, K) and biases (X, J), gate and up apart but in Gemma 4.

    gpt-oss has those in turn, inputs first.
    """
    is_in_turn = architecture == "gpt-oss"
    block, kind = f"blk.{name.split('.')[2]}", "bias" if name.endswith("_bias") else "weight"
    if is_in_turn and kind == "weight":
        weight = weight.swapaxes(1, 2)
    if "down_proj" in name:
        return {f"{block}.ffn_down_exps.{kind}": weight.copy()}
    if architecture == "gemma4":
        return {f"{block}.ffn_gate_up_exps.{kind}": weight.copy()}
    gate, up = (weight[:, ::2], weight[:, 1::2]) if is_in_turn else np.split(weight, 2, axis=1)
    return {f"{block}.ffn_gate_exps.{kind}": gate.copy(), f"{block}.ffn_up_exps.{kind}": up.copy()}


def _as_qwen35(config: PretrainedConfig, name: str, weight: Array) -> tuple[str, Array]:
    """Of a gated delta layer: value heads with one of each key head in turn, decays as they are used."""
    own = name.split(".linear_attn.")[-1]
    if own == "A_log":
        weight = _decays(weight)
    rows = {"in_proj_z.weight": (0, config.linear_value_head_dim), "out_proj.weight": (1, config.linear_value_head_dim)}
    rows |= dict.fromkeys(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"), (0, 1))
    if own in rows:
        weight = _tiled(config, weight, *rows[own])
    if own in ("in_proj_qkv.weight", "conv1d.weight"):
        parts = np.split(weight, [2 * config.linear_num_key_heads * config.linear_key_head_dim])
        weight = np.concatenate((parts[0], _tiled(config, parts[1], 0, config.linear_value_head_dim)))
    return name.replace("dt_bias", "dt_proj.bias"), weight


def _as_granite_hybrid(name: str, weight: Array, has_experts: bool) -> tuple[str, Array]:
    """Decays as they are used, what each head has in a row of its own, norms by groups of heads."""
    if name.endswith(".A_log"):
        weight = _decays(weight)
    if name.endswith((".A_log", ".D")):
        weight = weight[:, None]
    if name.endswith(".mamba.norm.weight"):
        weight = weight[None]
    name = name.replace("dt_bias", "dt_proj.bias").replace("moe.router.weight", "moe.router.layer.weight")
    return name if has_experts else name.replace("shared_mlp.output_linear", "mlp.down_proj"), weight


def _decays(weight: Array) -> Array:
    return (-torch.exp(torch.from_numpy(weight))).numpy()


def _tiled(config: PretrainedConfig, weight: Array, axis: int, size: int) -> Array:
    moved = np.moveaxis(weight, axis, 0)
    heads = moved.reshape(config.linear_num_key_heads, -1, size, *moved.shape[1:]).swapaxes(0, 1)
    return np.moveaxis(heads.reshape(moved.shape), 0, axis)
