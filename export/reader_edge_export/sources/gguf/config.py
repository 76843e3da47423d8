"""What config.json would hold for the model in a GGUF file.

llama.cpp's converters (`conversion/`) and loaders (`src/models/`) are the reference: what they leave out of a file is
here as llama.cpp fills it in. What a file says beyond what is mapped here is refused by name.
"""

from collections.abc import Callable
from typing import Any

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.rope import longrope_of, rotary_share, scaling_of, turned_share
from reader_edge_runtime.errors import UnsupportedArchitectureError

Config = dict[str, Any]

_IGNORED = ("tensor_data_layout", "rope.scaling.finetuned")  # say nothing about the mathematics
_INERT = {  # values of keys that change nothing where they are written
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "expert_shared_count": 0,
    "leading_dense_block_count": 0,
    "pooling_type": 0,
    "rope.mrope_section": [],
}
_STATE_SIZES = ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank")
_IMAGE_KEYS = ("vision.", "mm.")
_MAX_LAYERS = 1 << 10
_MAX_LEARNED_POSITIONS = 1 << 13  # transformers keeps a square mask of them for every layer
# Gemma scales its queries by this instead of the head size in its largest model, as llama.cpp knows by the layers.
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


def config_of(file: GgufFile) -> Config:
    """The config of a file's model, of a supported model type.

    Raises UnsupportedArchitectureError, or GgufError for what cannot be mapped exactly.
    """
    _check_is_model(file)
    architecture = architecture_of(file)
    if architecture not in _MODELS:
        raise UnsupportedArchitectureError(
            f"'{file.path}' holds a model of the architecture {architecture!r:.80}, which cannot be exported from "
            f"GGUF; supported are: {', '.join(_MODELS)}."
        )
    values = Metadata(file, architecture)
    model_type, build = _MODELS[architecture]
    config = {"model_type": model_type, **_shared(file, values), **build(file, values)}
    values.check_all_asked(_IGNORED, _INERT)
    return config


def architecture_of(file: GgufFile) -> str:
    """llama.cpp's name of the architecture, which is also the prefix of its metadata."""
    return Metadata(file, "general").text("architecture")


def _check_is_model(file: GgufFile) -> None:
    kind = Metadata(file, "general").text("type", "model")
    if kind != "model":
        raise file.error(f"holds no model but {kind!r:.80}", "give the file of the model")
    architecture = architecture_of(file)
    if architecture == "clip":
        raise file.error("holds what turns images into tokens (mmproj), no model of texts", "give the file beside it")
    images = tuple(f"{architecture}.{key}" for key in _IMAGE_KEYS)
    if any(key.startswith(images) for key in file.metadata):
        raise UnsupportedArchitectureError(
            f"'{file.path}' holds a model of images too, in one file, as Ollama keeps them: give the file of the text "
            "model alone, as llama.cpp has it beside its mmproj."
        )
    num_parts = Metadata(file, "split").size("count", 1, least=0)
    if num_parts > 1:
        raise file.error(f"is one of {num_parts} parts", "join them with 'llama-gguf-split --merge'")


def _shared(file: GgufFile, values: Metadata) -> Config:
    """What every architecture has. Token ids stay out of it: they come from the vocabulary."""
    num_experts, num_chosen = (values.size(f"expert_{name}count", 0, least=0) for name in ("", "used_"))
    if architecture_of(file) not in _MIXTURES and (num_experts or num_chosen):
        raise UnsupportedArchitectureError(
            f"'{file.path}' is a mixture of experts, of which {', '.join(_MIXTURES)} can be exported from GGUF."
        )
    if num_chosen > num_experts:
        raise file.error(f"sends each token to {num_chosen} of {num_experts} experts", "convert it again")
    if not values.flag("attention.causal", True):
        raise UnsupportedArchitectureError(f"'{file.path}' attends to later tokens too, so it is no text generator.")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise file.error("lacks the tensor token_embd.weight", "give the file of a whole model")
    num_layers = _num_layers(file, values)
    num_heads = values.size("attention.head_count")
    num_kv_heads = _num_kv_heads(file, values, num_layers, num_heads)
    if num_heads % num_kv_heads:
        raise file.error(f"has {num_heads} attention heads for {num_kv_heads} of keys and values", "convert it again")
    vocab_size = values.size("vocab_size", embedding.shape[0])
    if vocab_size != embedding.shape[0]:
        raise file.error(f"gives vocab_size as {vocab_size}, and {embedding.shape[0]} embeddings", "convert it again")
    return {
        "vocab_size": vocab_size,
        "hidden_size": values.size("embedding_length"),
        "intermediate_size": _mlp_width(file, values, num_layers),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": values.size("context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _num_layers(file: GgufFile, values: Metadata) -> int:
    """Without those that guess later tokens, which stand behind the others."""
    num_layers = values.size("block_count")
    if num_layers > min(_MAX_LAYERS, len(file.tensors)):
        raise file.error(f"counts {num_layers} layers in {len(file.tensors)} tensors")
    if architecture_of(file) in _WITH_LATER_LAYERS:
        num_layers -= (num_later := values.size("nextn_predict_layers", 0, least=0))
        if num_layers < 1:
            raise file.error(f"holds no layers but {num_later} that guess later tokens", "give the file of the model")
    return num_layers


def later_tensors(file: GgufFile, num_layers: int) -> frozenset[str]:
    """Names of the tensors of layers that guess later tokens, which answers do not need: behind so many layers."""
    if architecture_of(file) not in _WITH_LATER_LAYERS:
        return frozenset()
    num_all = Metadata(file, architecture_of(file)).size("block_count")
    prefixes = tuple(f"blk.{layer}." for layer in range(num_layers, num_all))
    return frozenset(name for name in file.tensors if name.startswith(prefixes))


def _mlp_width(file: GgufFile, values: Metadata, num_layers: int) -> int:
    """Of the first layer; those of Gemma 4 with the keys and values of others may be twice as wide."""
    if architecture_of(file) == "gemma4":
        return values.sizes_by_layer("feed_forward_length", num_layers)[0]
    return values.size("feed_forward_length")


def _num_kv_heads(file: GgufFile, values: Metadata, num_layers: int, num_heads: int) -> int:
    """Of the layers with attention; others have none."""
    if architecture_of(file) == "gemma4":  # that of layers with a window is the usual one
        by_layer = values.sizes_by_layer("attention.head_count_kv", num_layers, num_heads)
        kinds = _layer_types(file, values, 6)
        windowed = (count for count, kind in zip(by_layer, kinds, strict=True) if kind != "full_attention")
        return max(1, next(windowed, by_layer[0]))
    if architecture_of(file) not in _RECURRENT:
        return values.size("attention.head_count_kv", num_heads)
    counts = set(values.sizes_by_layer("attention.head_count_kv", num_layers, num_heads)) - {0}
    if len(counts) != 1:
        raise UnsupportedArchitectureError(f"'{file.path}' has layers of {sorted(counts)} heads of keys and values.")
    return counts.pop()


def _layer_kinds(file: GgufFile, values: Metadata, other: str) -> list[str]:
    """Layers with attention, and others of that kind, which have no heads of keys and values."""
    num_heads, num_layers = values.size("attention.head_count"), values.size("block_count")
    counts = values.sizes_by_layer("attention.head_count_kv", num_layers, num_heads)
    return ["full_attention" if count else other for count in counts]


def _heads(file: GgufFile, values: Metadata) -> Config:
    """Head size and rotary embedding, where all of a head rotates; scaling as the file has it."""
    head_dim = _head_dim(file, values)
    if rotary_share(file, values, head_dim) != 1:
        raise file.error("rotates only a part of each head, which its architecture does not", "convert it again")
    return {
        "head_dim": head_dim,
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": values.positive("rope.freq_base", 10000.0),
        "rope_scaling": scaling_of(file, values),
    }


def _head_dim(file: GgufFile, values: Metadata) -> int:
    usual = values.size("embedding_length") // values.size("attention.head_count")
    head_dim = values.size("attention.key_length", usual)
    if values.size("attention.value_length", usual) != head_dim:
        raise UnsupportedArchitectureError(f"'{file.path}' has heads whose keys and values differ in size.")
    return head_dim


def _llama(file: GgufFile, values: Metadata) -> Config:
    has_bias = {name: f"blk.0.{name}.bias" in file.tensors for name in ("attn_q", "attn_qkv", "ffn_gate")}
    return {
        **_heads(file, values),
        "attention_bias": has_bias["attn_q"] or has_bias["attn_qkv"],
        "mlp_bias": has_bias["ffn_gate"],
    }


def _mistral3(file: GgufFile, values: Metadata) -> Config:
    """Ministral 3, whose queries grow with their position; files without that are of Mistral Small."""
    config = _heads(file, values)
    scaling = config.pop("rope_scaling")
    if scaling is not None and (all_dim := values.number("rope.scaling.yarn_log_multiplier", 0.0)):
        scaling |= {"mscale": 1.0, "mscale_all_dim": all_dim}
    beta = values.number("attention.temperature_scale", 0.0)
    if not beta:
        return {**config, "model_type": "mistral", "rope_scaling": scaling, "sliding_window": None}
    step = values.size("rope.scaling.original_context_length")
    growth = {"llama_4_scaling_beta": beta, "original_max_position_embeddings": step}
    rope = {"rope_type": "default", "rope_theta": config.pop("rope_theta"), **(scaling or {}), **growth}
    return {**config, "rope_parameters": rope}


def _granite(file: GgufFile, values: Metadata) -> Config:
    """Files of Granite 4 without states say as much of states as others of it."""
    if not values.flag("rope.scaling.finetuned", True):
        raise UnsupportedArchitectureError(f"'{file.path}' has no position embedding, which cannot be exported.")
    mlp_size = values.size("feed_forward_length")
    if (shared_size := values.size("expert_shared_feed_forward_length", mlp_size)) != mlp_size:
        raise file.error(f"gives the size of its MLP as {mlp_size} and {shared_size}", "convert it again")
    for key in _STATE_SIZES:
        if values.has(f"ssm.{key}"):
            values.size(f"ssm.{key}", least=0)
    return {**_llama(file, values), **_granite_factors(file, values)}


def _granite_hybrid(file: GgufFile, values: Metadata) -> Config:
    """Granite 4, whose layers without heads of keys and values are of Mamba2."""
    conv, state, groups, inner, heads = (values.size(f"ssm.{key}") for key in _STATE_SIZES)
    hidden_size = values.size("embedding_length")
    if inner % heads or inner % hidden_size:
        raise file.error(f"has {inner} values in {heads} heads of states beside {hidden_size}", "convert it again")
    if groups != 1:
        raise UnsupportedArchitectureError(
            f"'{file.path}' has {groups} groups of heads of states, whose norm llama.cpp and transformers take "
            "differently: give the folder."
        )
    config = _heads(file, values)
    return {
        **config,
        **_granite_factors(file, values),
        "attention_bias": any(name.endswith("attn_q.bias") for name in file.tensors),
        "layer_types": _layer_kinds(file, values, "linear_attention"),
        "position_embedding_type": "rope" if values.flag("rope.scaling.finetuned", True) else "nope",
        "shared_intermediate_size": values.size(
            "expert_shared_feed_forward_length", values.size("feed_forward_length")
        ),
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_d_conv": conv,
        "mamba_d_state": state,
        "mamba_n_groups": groups,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner // hidden_size,
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in file.tensors),
        "mamba_proj_bias": False,
    }


def _granite_factors(file: GgufFile, values: Metadata) -> Config:
    """Converters leave those out that are nought or of no effect."""
    return {
        "attention_multiplier": values.number("attention.scale", 0.0) or _head_dim(file, values) ** -0.5,
        "embedding_multiplier": values.number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": values.number("residual_scale", 0.0) or 1.0,
        "logits_scaling": values.number("logit_scale", 0.0) or 1.0,
    }


def _gemma2(file: GgufFile, values: Metadata) -> Config:
    config = _heads(file, values)
    return {
        **config,
        "query_pre_attn_scalar": _query_scalar(values, config["head_dim"], _GEMMA2_27B_LAYERS),
        "attn_logit_softcapping": values.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": values.number("final_logit_softcapping", 30.0),
        "sliding_window": values.size("attention.sliding_window", 4096),
        "layer_types": _layer_types(file, values, 2),
    }


def _gemma3(file: GgufFile, values: Metadata) -> Config:
    config = _heads(file, values)
    window = values.size("attention.sliding_window", 0, least=0)
    return {
        **config,
        "query_pre_attn_scalar": _query_scalar(values, config["head_dim"], _GEMMA3_27B_LAYERS),
        "final_logit_softcapping": values.number("final_logit_softcapping", 0.0) or None,
        "rope_local_base_freq": values.positive("rope.freq_base_swa", 10000.0),
        "sliding_window": window or values.size("context_length"),
        "layer_types": _layer_types(file, values, 6) if window else ["full_attention"] * values.size("block_count"),
    }


def _gemma4(file: GgufFile, values: Metadata) -> Config:
    """Layers with a window have sizes of their own, by keys that end in _swa; the others' are the plain ones."""
    num_layers, layer_types = values.size("block_count"), _layer_types(file, values, 6)
    whole = layer_types.index("full_attention") if "full_attention" in layer_types else 0
    head_dim, windowed_dim = (_agreed(file, values, end) for end in ("", "_swa"))
    if values.size("rope.dimension_count", head_dim) != head_dim:
        raise file.error("rotates only a part of each head by its sizes, not by factors", "convert it again")
    if values.size("rope.dimension_count_swa", windowed_dim) != windowed_dim:
        raise file.error("rotates only a part of the heads of layers with a window", "convert it again")
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
                "partial_rotary_factor": turned_share(file, head_dim),
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
    }


def _agreed(file: GgufFile, values: Metadata, end: str) -> int:
    """The size of a head of keys, which that of values must be too."""
    head_dim = values.size(f"attention.key_length{end}")
    if values.size(f"attention.value_length{end}", head_dim) != head_dim:
        raise UnsupportedArchitectureError(f"'{file.path}' has heads whose keys and values differ in size.")
    return head_dim


def _query_scalar(values: Metadata, head_dim: int, num_layers_of_27b: int) -> int:
    is_27b = values.size("block_count") == num_layers_of_27b
    return values.size("embedding_length") // values.size("attention.head_count") if is_27b else head_dim


def _layer_types(file: GgufFile, values: Metadata, usual_period: int) -> list[str]:
    """Which layers see a window: given one by one, or all but the last of each period."""
    key, num_layers = "attention.sliding_window_pattern", values.size("block_count")
    if isinstance(file.metadata.get(f"{architecture_of(file)}.{key}"), list):
        windowed = values.flags(key)
    else:
        period = values.size(key, usual_period)
        windowed = [(layer + 1) % period != 0 for layer in range(num_layers)]
    if len(windowed) != num_layers:
        raise file.error(f"gives {key} for {len(windowed)} of {num_layers} layers", "convert it again")
    return ["sliding_attention" if is_windowed else "full_attention" for is_windowed in windowed]


def _olmo2(file: GgufFile, values: Metadata) -> Config:
    """OLMo 3's files are OLMo 2's with a window. Positions are stretched in layers without one alone."""
    config = _heads(file, values)
    window = values.size("attention.sliding_window", 0, least=0)
    if not window:
        return config
    base = values.positive("rope.freq_base_swa", config["rope_theta"])
    if base != config["rope_theta"]:
        raise UnsupportedArchitectureError(
            f"'{file.path}' gives windowed layers a base of their own ({base:g}), which OLMo 3 does not have."
        )
    plain = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    stretched = plain | (config.pop("rope_scaling") or {})
    return {
        **config,
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": _layer_types(file, values, 4),
        "rope_parameters": {"full_attention": stretched, "sliding_attention": plain},
    }


def _exaone4(file: GgufFile, values: Metadata) -> Config:
    window = values.size("attention.sliding_window", 0, least=0)
    return {
        **_heads(file, values),
        "sliding_window": window or None,
        "layer_types": _layer_types(file, values, 4) if window else ["full_attention"] * values.size("block_count"),
    }


def _seed_oss(file: GgufFile, values: Metadata) -> Config:
    return {**_llama(file, values), "attention_out_bias": "blk.0.attn_output.bias" in file.tensors}


def _lfm2(file: GgufFile, values: Metadata) -> Config:
    config = _heads(file, values)
    del config["head_dim"]
    return {
        **config,
        "norm_eps": config.pop("rms_norm_eps"),
        "conv_L_cache": values.size("shortconv.l_cache", least=2),
        "conv_bias": any(name.endswith("shortconv.conv.bias") for name in file.tensors),
        "layer_types": _layer_kinds(file, values, "conv"),
        "block_auto_adjust_ff_dim": False,  # the file has the size that it comes to
    }


def _qwen35(file: GgufFile, values: Metadata) -> Config:
    head_dim = _head_dim(file, values)
    if values.has("rope.dimension_sections"):  # of angles in images, which are all the same in texts
        values.sizes("rope.dimension_sections")
    num_values, inner = values.size("ssm.time_step_rank"), values.size("ssm.inner_size")
    kinds = ("full_attention", "linear_attention")
    return {
        "head_dim": head_dim,
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": values.positive("rope.freq_base", 10000.0),
        "rope_scaling": scaling_of(file, values),
        "partial_rotary_factor": rotary_share(file, values, head_dim),
        "linear_conv_kernel_dim": values.size("ssm.conv_kernel", least=2),
        "linear_num_key_heads": values.size("ssm.group_count"),
        "linear_num_value_heads": num_values,
        "linear_key_head_dim": values.size("ssm.state_size"),
        "linear_value_head_dim": max(inner // num_values, 1),
        "layer_types": [kinds[is_recurrent] for is_recurrent in _recurrent_layers(file, values)],
    }


def _recurrent_layers(file: GgufFile, values: Metadata) -> list[bool]:
    """Which layers keep states: given one by one, or all but the last of each period."""
    key, num_all, num_layers = "attention.recurrent_layers", values.size("block_count"), _num_layers(file, values)
    interval = values.size("full_attention_interval", 4)
    if not values.has(key):
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    recurrent = values.flags(key)
    if len(recurrent) != num_all:
        raise file.error(f"gives {key} for {len(recurrent)} of {num_all} layers", "convert it again")
    return recurrent[:num_layers]


def _qwen3moe(file: GgufFile, values: Metadata) -> Config:
    """All layers have experts, whose shares add up to one."""
    return {
        **_heads(file, values),
        "num_experts": values.size("expert_count"),
        "num_experts_per_tok": values.size("expert_used_count"),
        "moe_intermediate_size": values.size("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _phi2(file: GgufFile, values: Metadata) -> Config:
    return {
        "layer_norm_eps": values.positive("attention.layer_norm_epsilon"),
        "rope_theta": values.positive("rope.freq_base", 10000.0),
        "rope_scaling": scaling_of(file, values),
        "partial_rotary_factor": rotary_share(file, values, _head_dim(file, values)),
    }


def _phi3(file: GgufFile, values: Metadata) -> Config:
    window = values.size("attention.sliding_window", 0, least=0)
    original = values.size("rope.scaling.original_context_length", values.size("context_length"))
    return {
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": values.positive("rope.freq_base", 10000.0),
        "partial_rotary_factor": rotary_share(file, values, _head_dim(file, values)),
        "original_max_position_embeddings": original,
        "rope_scaling": longrope_of(file, values, original),
        "sliding_window": window or None,
    }


def _gpt2(file: GgufFile, values: Metadata) -> Config:
    num_positions = values.size("context_length")
    if num_positions > _MAX_LEARNED_POSITIONS:
        raise file.error(f"has {num_positions} learned positions", f"at most {_MAX_LEARNED_POSITIONS} are exported")
    return {
        "n_positions": num_positions,
        "n_embd": values.size("embedding_length"),
        "n_layer": values.size("block_count"),
        "n_head": values.size("attention.head_count"),
        "n_inner": values.size("feed_forward_length"),
        "layer_norm_epsilon": values.positive("attention.layer_norm_epsilon"),
    }


_MODELS: dict[str, tuple[str, Callable[[GgufFile, Metadata], Config]]] = {  # by architecture: model_type, what it adds
    "llama": ("llama", _llama),
    "mistral3": ("ministral3", _mistral3),
    "qwen2": ("qwen2", _heads),
    "qwen3": ("qwen3", _heads),
    "gemma": ("gemma", _heads),
    "gemma2": ("gemma2", _gemma2),
    "gemma3": ("gemma3_text", _gemma3),
    "gemma4": ("gemma4_text", _gemma4),
    "phi2": ("phi", _phi2),
    "phi3": ("phi3", _phi3),
    "smollm3": ("smollm3", _heads),
    "gpt2": ("gpt2", _gpt2),
    "granite": ("granite", _granite),
    "granitehybrid": ("granitemoehybrid", _granite_hybrid),
    "olmo2": ("olmo2", _olmo2),
    "exaone4": ("exaone4", _exaone4),
    "seed_oss": ("seed_oss", _seed_oss),
    "lfm2": ("lfm2", _lfm2),
    "qwen35": ("qwen3_5_text", _qwen35),
    "qwen3moe": ("qwen3_moe", _qwen3moe),
}
_MIXTURES = ("qwen3moe",)
_WITH_LATER_LAYERS = ("qwen35",)
_RECURRENT = ("lfm2", "granitehybrid")  # with layers that have no attention
ARCHITECTURES = tuple(_MODELS)
