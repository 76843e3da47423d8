"""Tiny models as llama.cpp's converters would write them (`conversion/` there), in files of their own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from reader_edge_runtime.arrays import Array
from tests.export.gguf_values import Values, gguf_values
from tests.gguf_files import F32, byte_level, write_gguf
from tests.tiny_models import build_tiny_model, tiny_config

_DELTA = ("qwen35", "qwen35moe")
_SCALES = {"scale": "ffn_gate_inp.scale", "per_expert_scale": "ffn_down_exps.scale"}
_GATED = ("ffn_gate", "ffn_up")
_SCALARS = ("layer_scalar", "expert_bias", "score_correction_bias")  # buffers that files hold
_SLOPES = (".act_fn.alpha_p", ".act_fn.alpha_n")  # which are in the metadata
_STACKED = {"altup_projections": "altup_proj.weight", "altup_unembed_projections": "altup_unembd_proj.weight"}
_PAIRED = ("llama", "mistral3", "granite", "granitehybrid", "granitemoe", "smollm3", "arcee")
_NEMOTRON = ("nemotron_h", "nemotron_h_moe")


def gguf_weights(model: PreTrainedModel, architecture: str) -> dict[str, Array]:
    """All of a model, by their names in the file."""
    config = model.config
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", 0)}
    weights: dict[str, Array] = {}
    scalars = [(name, value) for name, value in model.named_buffers() if name.endswith(_SCALARS)]
    for name, parameter in (*model.named_parameters(), *scalars):
        weight: Array = parameter.detach().numpy()
        apart = _stored_apart(config, architecture, name, weight)
        if apart is not None:
            weights |= apart
            continue
        module = name.split(".")[-2]
        if architecture in (*_PAIRED, *_NEMOTRON) and module in heads:
            halves = weight.reshape(heads[module], 2, -1, *weight.shape[1:])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        is_shifted = architecture in (*_DELTA, "qwen3next") and "linear_attn" not in name
        is_shifted |= architecture in ("gemma", "gemma2", "gemma3")
        if is_shifted and name.endswith("norm.weight"):
            weight = weight + 1
        if config.model_type in _STATEFUL:
            name, weight = _STATEFUL[config.model_type](config, name, weight)
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
        known = name.replace("model.", "backbone.", 1) if config.model_type == "nemotron_h" else name
        known = known.replace("gate.moe_statics.", "moe_statics.").replace("correction_bias", "correction.bias")
        stored = _router_scale(name) or names.get_name(known, (".weight", ".bias"))
        assert stored is not None, name
        ends = {
            "correct_output_scale": ".weight",
            "layer_scalar": ".weight",
            "sinks": ".weight",
            "expert_bias": ".bias",
        }
        weights[stored + ends.get(name.split(".")[-1], "")] = weight.copy()
    if architecture == "gemma4":
        weights |= _beside_gemma4(config)
    if architecture == "gemma3n":
        weights |= {stored: _stacked(model, stack) for stack, stored in _STACKED.items()}
    return weights


def _stored_apart(config: PretrainedConfig, architecture: str, name: str, weight: Array) -> dict[str, Array] | None:
    """What files have by several tensors, or none; None for a parameter that is one."""
    if architecture == "deepseek2" and name.endswith("kv_b_proj.weight"):
        return _by_head(config, name, weight)
    if ".experts." in name:
        return _of_experts(name, weight, architecture)
    if architecture == "qwen3next" and "linear_attn" in name:
        return _as_qwen3next(config, name, weight)
    return {} if name.endswith(_SLOPES) or name.split(".")[1] in _STACKED else None


def _stacked(model: PreTrainedModel, name: str) -> Array:
    weights: list[Any] = [each.weight for each in model.get_submodule(f"model.{name}").children()]
    return np.stack([weight.detach().numpy() for weight in weights])


def _by_head(config: PretrainedConfig, name: str, weight: Array) -> dict[str, Array]:
    """What makes keys and values of a latent, apart; keys have inputs first."""
    block = f"blk.{name.split('.')[2]}"
    rows = weight.reshape(config.num_attention_heads, -1, weight.shape[1])
    keys, values = np.split(rows, [config.qk_nope_head_dim], axis=1)
    return {f"{block}.attn_k_b.weight": keys.swapaxes(1, 2).copy(), f"{block}.attn_v_b.weight": values.copy()}


def _beside_gemma4(config: PretrainedConfig) -> dict[str, Array]:
    """What turns of heads in layers without a window, and keys that no layer reads, as makers' folders have them."""
    whole = config.per_layer_config[config.layer_types.index("full_attention")]
    num_rotated = int(whole.head_dim * config.rope_parameters["full_attention"]["partial_rotary_factor"] / 2)
    factors = np.where(np.arange(whole.head_dim // 2) < num_rotated, 1, 1e30).astype(np.float32)
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
    if "gate" not in name:
        return {f"{block}.ffn_{'down' if 'down_proj' in name else 'up'}_exps.{kind}": weight.copy()}
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


def _as_qwen3next(config: PretrainedConfig, name: str, weight: Array) -> dict[str, Array]:
    """Of a gated delta layer: queries, keys and values of all heads below each other, gates apart, decays as used."""
    block, own = f"blk.{name.split('.')[2]}.", name.split(".linear_attn.")[1]
    if own == "in_proj_qkvz.weight":
        by_head = weight.reshape(config.linear_num_key_heads, -1, weight.shape[1])
        group = config.linear_num_value_heads // config.linear_num_key_heads
        sizes = [config.linear_key_head_dim] * 2 + [group * config.linear_value_head_dim]
        parts = [part.reshape(-1, weight.shape[1]) for part in np.split(by_head, np.cumsum(sizes), axis=1)]
        return {f"{block}attn_qkv.weight": np.concatenate(parts[:3]), f"{block}attn_gate.weight": parts[3].copy()}
    stored = {
        **{"in_proj_ba.weight": "ssm_ba.weight", "conv1d.weight": "ssm_conv1d.weight", "dt_bias": "ssm_dt.bias"},
        **{"A_log": "ssm_a", "norm.weight": "ssm_norm.weight", "out_proj.weight": "ssm_out.weight"},
    }
    weight = _decays(weight) if own == "A_log" else weight
    return {block + stored[own]: (weight.squeeze(1) if weight.ndim == 3 else weight).copy()}


def _as_granite_hybrid(config: PretrainedConfig, name: str, weight: Array) -> tuple[str, Array]:
    name, weight = _as_mamba2(name, weight, num_groups=1)
    name = name.replace("moe.router.weight", "moe.router.layer.weight")
    return name if config.num_local_experts else name.replace("shared_mlp.output_linear", "mlp.down_proj"), weight


def _as_mamba2(name: str, weight: Array, num_groups: int) -> tuple[str, Array]:
    """Decays as they are used, what each head has in a row of its own, norms by groups of heads."""
    if name.endswith(".A_log"):
        weight = _decays(weight)
    if name.endswith((".A_log", ".D")):
        weight = weight[:, None]
    if name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        weight = weight.reshape(num_groups, -1)
    return name.replace("dt_bias", "dt_proj.bias"), weight


def _as_falcon_h1(config: PretrainedConfig, name: str, weight: Array) -> tuple[str, Array]:
    """Multiplied by the factors of what a matrix reads and makes."""
    reads, of_keys = config.attention_in_multiplier, config.key_multiplier
    shared = config.mamba_n_groups * config.mamba_d_state
    sizes = [config.mamba_d_ssm, config.mamba_d_ssm, shared, shared, config.mamba_n_heads]
    parts = np.repeat(np.array(config.ssm_multipliers, np.float32), sizes)[:, None]
    factors = {
        **{"q_proj": reads, "k_proj": reads * of_keys, "v_proj": reads, "o_proj": config.attention_out_multiplier},
        **{"in_proj": config.ssm_in_multiplier * parts, "out_proj": config.ssm_out_multiplier},
        **{"gate_proj": config.mlp_multipliers[0], "down_proj": config.mlp_multipliers[1]},
        **{"embed_tokens": config.embedding_multiplier, "lm_head": config.lm_head_multiplier},
    }
    factor = np.float32(factors.get(name.split(".")[-2], 1.0))
    return _as_mamba2(name, weight * factor, config.mamba_n_groups)


_STATEFUL: dict[str, Callable[[PretrainedConfig, str, Array], tuple[str, Array]]] = {  # by model type: as in files
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), _as_qwen35),
    "granitemoehybrid": _as_granite_hybrid,
    "falcon_h1": _as_falcon_h1,
    "nemotron_h": lambda config, name, weight: _as_mamba2(name, weight, config.n_groups),
}


def _decays(weight: Array) -> Array:
    return (-torch.exp(torch.from_numpy(weight))).numpy()


def _tiled(config: PretrainedConfig, weight: Array, axis: int, size: int) -> Array:
    moved = np.moveaxis(weight, axis, 0)
    heads = moved.reshape(config.linear_num_key_heads, -1, size, *moved.shape[1:]).swapaxes(0, 1)
    return np.moveaxis(heads.reshape(moved.shape), 0, axis)


_KEPT = (
    "conv.weight",
    "conv1d.weight",
    "ssm_a",
    "ssm_d",
    "ssm_norm.weight",
    "exp_probs_b.bias",
    *(f"altup_{name}.weight" for name in ("proj", "unembd_proj", "router", "predict_coef", "correct_coef")),
    *("laurel_l.weight", "laurel_r.weight"),
)  # in fp32, small as they are

# model_type -> (architecture in the file, what of the tiny model the format cannot say and llama.cpp supposes)
_STRETCHED = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
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
    "starcoder2": ("starcoder2", {"sliding_window": 4096}),
    "smollm3": ("smollm3", {**_FULL, "num_hidden_layers": 4}),
    "gpt2": ("gpt2", {"scale_attn_by_inverse_layer_idx": False}),
    "granite": ("granite", {"embedding_multiplier": 3.0}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo2", {}),
    "exaone4": ("exaone4", {}),
    "seed_oss": ("seed_oss", {}),
    "arcee": ("arcee", {}),
    "hunyuan_v1_dense": ("hunyuan-dense", {}),
    "ernie4_5": ("ernie4_5", {}),
    "glm4": ("glm4", {}),
    "internlm3": ("llama", {}),
    "apertus": ("apertus", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "lfm2": ("lfm2", {}),
    "qwen3_5_text": ("qwen35", {}),
    "granitemoehybrid": ("granitehybrid", {"mamba_n_groups": 1}),
    "gemma4_text": ("gemma4", {}),
    "gemma3n_text": ("gemma3n", {}),
    "qwen3_moe": ("qwen3moe", {}),
    "mixtral": ("llama", {"sliding_window": None}),
    "gpt_oss": ("gpt-oss", {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}),
    "qwen3_5_moe_text": ("qwen35moe", {}),
    "lfm2_moe": ("lfm2moe", {"routed_scaling_factor": 1.0}),
    "ernie4_5_moe": ("ernie4_5-moe", {"intermediate_size": 192}),
    "deepseek_v2": ("deepseek2", {"rope_parameters": {**_STRETCHED, "mscale": 0.7, "mscale_all_dim": 0.7}}),
    "deepseek_v3": ("deepseek2", {}),
    "glm4_moe_lite": ("deepseek2", {}),
    "falcon_h1": ("falcon-h1", {}),
    "qwen3_next": ("qwen3next", {}),
    "phimoe": ("phimoe", {"head_dim": 16, "router_jitter_noise": 0.01}),
    "nemotron_h": ("nemotron_h", {}),
    "minicpm3": ("minicpm3", {"v_head_dim": 16, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}),
}


def build_source(name: str, folder: Path, **changes: Any) -> PreTrainedModel:
    """A tiny model of TINY_MODELS that a GGUF file can hold, and its folder in Hugging Face format."""
    build_tiny_model(name, folder, **GGUF_MODELS[tiny_config(name)["model_type"]][1] | changes)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    checked: PreTrainedModel = model.eval()
    return checked


def write_model(
    model: PreTrainedModel,
    path: Path,
    kind: gguf.GGMLQuantizationType = F32,
    values: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    architecture: str = "",
) -> Path:
    """Write a model with the tokenizer of its folder. path: of the file, or a folder for it. kind: of its matrices,
    kinds: of some. values, tensors: added, in place, or left out (None). architecture: of the file, where it is not
    the usual one.
    """
    config = model.config
    architecture = architecture or _architecture(config)
    vocabulary = byte_level(Tokenizer.from_file(f"{model.name_or_path}/tokenizer.json"), "gpt-2", config.vocab_size)
    special = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    own = {f"{architecture}.{key}": value for key, value in gguf_values(config).items()}
    own |= _xielu(model) if architecture == "apertus" else {}
    all_weights = {**gguf_weights(model, architecture), **(tensors or {})}
    weights = {name: weight for name, weight in all_weights.items() if weight is not None}
    matrices = [name for name, weight in weights.items() if weight.ndim > 1 and not name.endswith(_KEPT)]
    all_kinds = dict.fromkeys(matrices, kind) | dict(kinds or {})
    path = path / "model.gguf" if path.is_dir() else path
    return write_gguf(path, architecture, {**own, **vocabulary, **special, **(values or {})}, weights, all_kinds)


def _xielu(model: PreTrainedModel) -> Values:
    activations = [module for name, module in model.named_modules() if name.endswith(".act_fn")]
    return {
        f"xielu.{key}": [getattr(each, key).item() for each in activations]
        for key in ("alpha_p", "alpha_n", "beta", "eps")
    }


def _architecture(config: PretrainedConfig) -> str:
    """In the file: that of Granite 4 and Nemotron-H hangs on their layers."""
    if config.model_type == "nemotron_h":
        return "nemotron_h_moe" if "moe" in config.layer_types else "nemotron_h"
    is_granite_moe = config.model_type == "granitemoehybrid" and "linear_attention" not in config.layer_types
    return "granitemoe" if is_granite_moe else GGUF_MODELS[config.model_type][0]
