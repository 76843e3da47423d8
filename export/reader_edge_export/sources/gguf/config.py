"""What config.json would hold for the model in a GGUF file.

llama.cpp's converters (`conversion/`) and loaders (`src/models/`) are the reference: what they leave out of a file is
here as llama.cpp fills it in. What a file says beyond what is mapped here is refused by name.
"""

from collections.abc import Callable

from reader_edge_export.sources.architectures import is_mixture
from reader_edge_export.sources.config.config_values import MAX_ALL_EXPERTS, MAX_EXPERTS
from reader_edge_export.sources.gguf.family_configs import (
    ernie_moe,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    gpt_oss,
    lfm2,
    lfm2moe,
    phimoe,
    qwen3moe,
    qwen3next,
    qwen35,
    qwen35moe,
)
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.latent_configs import deepseek2, minicpm3
from reader_edge_export.sources.gguf.layer_sizes import (
    Config,
    architecture_of,
    head_dim_of,
    heads,
    layer_types_of,
    mlp_width,
    num_kv_heads_of,
    num_layers_of,
    partial_heads,
)
from reader_edge_export.sources.gguf.mamba_configs import (
    STATE_SIZES,
    falcon_h1,
    granite_factors,
    granite_hybrid_moe,
    granite_moe,
    nemotron_h,
)
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.rope import base_of, longrope_of, original_context_of, rotary_share, scaling_of
from reader_edge_runtime.errors import UnsupportedArchitectureError

_IGNORED = (  # say nothing about the mathematics of a text
    *("tensor_data_layout", "rope.scaling.finetuned", "source_quantization", "source_fp8_tensors"),
    "classifier.output_labels",
    # Of angles, which are one and the same for all axes of images in a text; how a text tells where images are.
    *("mrope_sections", "rope.mrope_section", "rope.dimension_sections", "rope.mrope_interleaved"),
    *("image_token_id", "image_token_index", "vision_start_token_id", "vision_end_token_id", "spatial_merge_size"),
    *("n_deepstack_layers", "altup.lr_multiplier"),
)
_INERT = {  # values of keys that change nothing where they are written
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "expert_shared_count": 0,
    "leading_dense_block_count": 0,
    "ssm.v_head_reordered": True,
}
LAST, RANK = 3, 4  # of {architecture}.pooling_type
_WITHOUT = {
    "qwen3_5_moe_text": ("intermediate_size",),
    "nemotron_h": ("tie_word_embeddings",),
}  # what a model type has no use for
_IMAGE_KEYS, _IMAGE_TENSORS = ("vision.", "audio.", "mm."), ("v.", "a.", "s.", "mm.")
_STARCODER2_WINDOW = 4096  # arXiv 2402.19173
_MAX_LEARNED_POSITIONS = 1 << 13  # transformers keeps a square mask of them for every layer


def config_of(file: GgufFile) -> Config:
    """The config of a file's model, of a supported model type.

    Raises UnsupportedArchitectureError, or GgufError for what cannot be mapped exactly.
    """
    _check_is_model(file)
    architecture = architecture_of(file)
    if architecture not in MODELS:
        raise UnsupportedArchitectureError(
            f"'{file.path}' holds a model of the architecture {architecture!r:.80}, which cannot be exported from "
            f"GGUF; supported are: {', '.join(MODELS)}."
        )
    values = Metadata(file, architecture)
    if architecture in _WITH_BASE:
        values.number("rope.freq_base")
    model_type, build = MODELS[architecture]
    config = {"model_type": model_type, **_shared(file, values), **build(file, values)}
    if values.size("expert_count", 0, least=0) and not is_mixture(config):
        raise UnsupportedArchitectureError(
            f"'{file.path}' is a mixture of experts of the architecture {architecture!r}, which cannot be exported."
        )
    keys = (key.removeprefix(f"{architecture}.") for key in file.metadata)
    of_images = [key for key in keys if key.startswith(_IMAGE_KEYS)]  # which some files have without such a model
    values.check_all_read((*_IGNORED, *of_images), _INERT)
    return {key: value for key, value in config.items() if key not in _WITHOUT.get(model_type, ())}


def model_type_of(architecture: str) -> str | None:
    """transformers' name of an architecture, None where it cannot be exported."""
    return MODELS[architecture][0] if architecture in MODELS else None


def pooling_type_of(file: GgufFile) -> int:
    """What llama.cpp makes of a model's states, by its numbers: 0 nothing. Raises GgufError."""
    return Metadata(file, architecture_of(file)).size("pooling_type", 0, least=0)


def _check_is_model(file: GgufFile) -> None:
    kind = Metadata(file, "general").text("type", "model")
    if kind != "model":
        merge = "merge it into its model with `reader-edge export MODEL OUT --adapter FILE`"
        remedy = merge if kind == "adapter" else "give the file of the model"
        raise file.error(f"holds no model but {kind!r:.80}", remedy)
    architecture = architecture_of(file)
    if architecture == "clip":
        raise file.error("holds what turns images into tokens (mmproj), no model of texts", "give the file beside it")
    if any(name.startswith(_IMAGE_TENSORS) for name in file.tensors):
        raise UnsupportedArchitectureError(
            f"'{file.path}' holds a model of images too, in one file, as Ollama keeps them: give the file of the text "
            "model alone, as llama.cpp has it beside its mmproj."
        )


def _shared(file: GgufFile, values: Metadata) -> Config:
    """What every architecture has. Token ids stay out of it: they come from the vocabulary."""
    num_experts, num_chosen = (values.size(f"expert_{name}count", 0, least=0) for name in ("", "used_"))
    if num_experts > MAX_EXPERTS:
        raise file.error(f"has {num_experts} experts", f"at most {MAX_EXPERTS} are exported")
    if num_chosen > num_experts:
        raise file.error(f"sends each token to {num_chosen} of {num_experts} experts")
    if not values.flag("attention.causal", True):
        raise UnsupportedArchitectureError(f"'{file.path}' attends to later tokens too, so it is no text generator.")
    pooling = values.size("pooling_type", 0, least=0)
    if pooling not in (0, LAST, RANK) or (pooling == RANK and architecture_of(file) != "qwen3"):
        raise UnsupportedArchitectureError(
            f"'{file.path}' makes embeddings of texts (pooling_type {pooling}), and not of their last tokens' states: "
            "give a model that does so, or one that answers."
        )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise file.error("lacks the tensor token_embd.weight", "give the file of a whole model")
    num_layers = num_layers_of(file, values)
    if num_layers * num_experts > MAX_ALL_EXPERTS:
        raise file.error(f"has {num_experts} experts in each of {num_layers} layers")
    num_heads = values.size("attention.head_count")
    num_kv_heads = num_kv_heads_of(file, values, num_layers, num_heads)
    if num_heads % num_kv_heads:
        raise file.error(f"has {num_heads} attention heads for {num_kv_heads} of keys and values")
    vocab_size = values.size("vocab_size", 0, least=0) or embedding.shape[0]  # Ollama's converter may write 0
    if vocab_size != embedding.shape[0]:
        raise file.error(f"gives vocab_size as {vocab_size}, and {embedding.shape[0]} embeddings")
    return {
        "vocab_size": vocab_size,
        "hidden_size": values.size("embedding_length"),
        "intermediate_size": mlp_width(file, values, num_layers),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": values.size("context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _llama(file: GgufFile, values: Metadata) -> Config:
    return {**_biased("attention_bias")(file, values), "mlp_bias": "blk.0.ffn_up.bias" in file.tensors}


def _llama_or_mixtral(file: GgufFile, values: Metadata) -> Config:
    num_experts = values.size("expert_count", 0, least=0)
    if not num_experts:
        return _llama(file, values)
    num_chosen = values.size("expert_used_count")
    experts = {"num_local_experts": num_experts, "num_experts_per_tok": num_chosen, "sliding_window": None}
    return {**heads(file, values), "model_type": "mixtral", **experts}


def _mistral3(file: GgufFile, values: Metadata) -> Config:
    """Ministral 3, whose queries grow with their position; files without that are of Mistral Small."""
    config = heads(file, values)
    scaling = config.pop("rope_scaling")
    mscale, all_dim = (values.positive_or_zero(f"rope.scaling.{key}") for key in ("mscale", "yarn_log_multiplier"))
    if scaling is not None and all_dim:
        scaling |= {"mscale": mscale or 1.0, "mscale_all_dim": all_dim}
    beta = values.positive_or_zero("attention.temperature_scale")
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
        raise file.error(f"gives the size of its MLP as {mlp_size} and {shared_size}")
    for key in STATE_SIZES:
        if values.has(f"ssm.{key}"):
            values.size(f"ssm.{key}", least=0)
    return {**_llama(file, values), **granite_factors(file, values)}


def _olmo2(file: GgufFile, values: Metadata) -> Config:
    """OLMo 3's files are OLMo 2's with a window. Positions are stretched in layers without one alone."""
    config = heads(file, values)
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
        "layer_types": layer_types_of(file, values, 4),
        "rope_parameters": {"full_attention": stretched, "sliding_attention": plain},
    }


def _exaone4(file: GgufFile, values: Metadata) -> Config:
    window = values.size("attention.sliding_window", 0, least=0)
    return {
        **heads(file, values),
        "sliding_window": window or None,
        "layer_types": layer_types_of(file, values, 4) if window else ["full_attention"] * values.size("block_count"),
    }


def _seed_oss(file: GgufFile, values: Metadata) -> Config:
    return {**_llama(file, values), "attention_out_bias": "blk.0.attn_output.bias" in file.tensors}


def _biased(key: str) -> Callable[[GgufFile, Metadata], Config]:
    """Of a model like Llama where one key says whether its products have biases."""
    return lambda file, values: {**heads(file, values), key: _has_bias(file)}


def _has_bias(file: GgufFile) -> bool:
    return any(f"blk.0.{name}.bias" in file.tensors for name in ("attn_q", "attn_qkv"))


def _apertus(file: GgufFile, values: Metadata) -> Config:
    """What bends its values is no tensor (`Placement`); its class wants a word on positions."""
    config = _biased("attention_bias")(file, values)
    plain = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    return {**config, "rope_parameters": plain | (config.pop("rope_scaling") or {})}


def _glm4(file: GgufFile, values: Metadata) -> Config:
    return {**partial_heads(file, values), "attention_bias": _has_bias(file)}


def _phi2(file: GgufFile, values: Metadata) -> Config:
    return {
        "layer_norm_eps": values.positive("attention.layer_norm_epsilon"),
        "rope_theta": base_of(file, values),
        "rope_scaling": scaling_of(file, values),
        "partial_rotary_factor": rotary_share(file, values, head_dim_of(file, values)),
    }


def _phi3(file: GgufFile, values: Metadata) -> Config:
    window = values.size("attention.sliding_window", 0, least=0)
    original = original_context_of(values)
    return {
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": base_of(file, values),
        "partial_rotary_factor": rotary_share(file, values, head_dim_of(file, values)),
        "original_max_position_embeddings": original,
        "rope_scaling": longrope_of(file, values, original),
        "sliding_window": window or None,
    }


def _starcoder2(file: GgufFile, values: Metadata) -> Config:
    """Files do not hold the window, which all models of the makers have."""
    return {
        "norm_epsilon": values.positive("attention.layer_norm_epsilon"),
        "rope_theta": base_of(file, values),
        "rope_scaling": scaling_of(file, values),
        "use_bias": _has_bias(file),
        "sliding_window": _STARCODER2_WINDOW,
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


MODELS: dict[str, tuple[str, Callable[[GgufFile, Metadata], Config]]] = {  # by architecture: model_type, what it adds
    "llama": ("llama", _llama_or_mixtral),
    "mistral3": ("ministral3", _mistral3),
    "qwen2": ("qwen2", heads),
    "qwen3": ("qwen3", heads),
    "qwen2vl": ("qwen2", heads),
    "qwen3vl": ("qwen3", heads),
    "gemma": ("gemma", heads),
    "gemma2": ("gemma2", gemma2),
    "gemma3": ("gemma3_text", gemma3),
    "gemma4": ("gemma4_text", gemma4),
    "gemma3n": ("gemma3n_text", gemma3n),
    "phi2": ("phi", _phi2),
    "phi3": ("phi3", _phi3),
    "starcoder2": ("starcoder2", _starcoder2),
    "smollm3": ("smollm3", heads),
    "gpt2": ("gpt2", _gpt2),
    "granite": ("granite", _granite),
    "granitehybrid": ("granitemoehybrid", granite_hybrid_moe),
    "granitemoe": ("granitemoehybrid", granite_moe),
    "olmo2": ("olmo2", _olmo2),
    "exaone4": ("exaone4", _exaone4),
    "seed_oss": ("seed_oss", _seed_oss),
    "arcee": ("arcee", _llama),
    "hunyuan-dense": ("hunyuan_v1_dense", _biased("attention_bias")),
    "ernie4_5": ("ernie4_5", _biased("use_bias")),
    "glm4": ("glm4", _glm4),
    "apertus": ("apertus", _apertus),
    "lfm2": ("lfm2", lfm2),
    "qwen35": ("qwen3_5_text", qwen35),
    "qwen3moe": ("qwen3_moe", qwen3moe),
    "qwen3vlmoe": ("qwen3_moe", qwen3moe),
    "gpt-oss": ("gpt_oss", gpt_oss),
    "qwen35moe": ("qwen3_5_moe_text", qwen35moe),
    "lfm2moe": ("lfm2_moe", lfm2moe),
    "ernie4_5-moe": ("ernie4_5_moe", ernie_moe),
    "deepseek2": ("deepseek_v2", deepseek2),
    "minicpm3": ("minicpm3", minicpm3),
    "falcon-h1": ("falcon_h1", falcon_h1),
    "qwen3next": ("qwen3_next", qwen3next),
    "phimoe": ("phimoe", phimoe),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), ("nemotron_h", nemotron_h)),
}
# Their bases of positions are not 10000, and every converter writes them, but for Ollama's where it found none.
_WITH_BASE = ("olmo2", "smollm3", "lfm2", "lfm2moe", "gpt-oss")
