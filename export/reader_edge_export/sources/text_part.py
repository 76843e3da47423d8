"""The text model in a folder of a vision-language model: its config, and which tensors are its own."""

import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from reader_edge_export.sources.config.config_keys import READ, is_harmless, named_keys
from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_runtime.adapters.adapter import own_name
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError

_TEXT_TYPES = {  # by model_type of the whole: those of the text model that can be exported
    "mistral3": ("ministral3", "mistral"),
    "gemma3": ("gemma3_text",),
    "qwen3_5": ("qwen3_5_text",),
    "gemma4": ("gemma4_text",),
    "gemma3n": ("gemma3n_text",),
    "qwen3_5_moe": ("qwen3_5_moe_text",),
    "lfm2_vl": ("lfm2",),
    "qwen3_vl": ("qwen3_vl_text",),
    "qwen3_vl_moe": ("qwen3_vl_moe_text",),
    "qwen2_5_vl": ("qwen2_5_vl_text",),
    **dict.fromkeys(("smolvlm", "idefics3"), ("llama",)),
    "muse_glimmer": ("muse_glimmer_text",),
}
_SAME = {  # what these compute of texts, and are exported as
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen2_5_vl_text": "qwen2",
}
_NAMES = (
    *("Mistral3", "Gemma3", "Qwen3_5", "Gemma4", "Qwen3_5Moe", "Lfm2Vl", "Qwen3VL", "Qwen3VLMoe", "Qwen2_5_VL"),
    *("SmolVLM", "Idefics3", "MuseGlimmer", "Gemma3n"),
)
_CLASSES = tuple(f"{name}ForConditionalGeneration" for name in _NAMES)
_IMAGE_KEYS = (  # of config.json, of sounds too
    *("vision_config", "image_token_index", "image_token_id", "boi_token_index", "boi_token_id", "eoi_token_index"),
    *("eoi_token_id", "mm_tokens_per_image", "projector_hidden_act", "multimodal_projector_bias"),
    *("spatial_merge_size", "vision_feature_layer", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    *("vision_token_id", "out_hidden_size"),
    *("audio_config", "audio_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index"),
    *("vision_soft_tokens_per_image", "audio_soft_tokens_per_image", "language_model_only"),
    *("downsample_factor", "projector_hidden_size", "projector_bias", "projector_use_layernorm", "encoder_patch_size"),
    *("do_image_splitting", "min_tiles", "max_tiles", "tile_size", "use_thumbnail", "use_image_special_tokens"),
    *("min_image_tokens", "max_image_tokens", "max_pixels_tolerance", "max_num_patches", "scale_factor"),
)
# By a class of transformers, where it is not given: its makers leave that out of a text_config.
_SUPPOSED: dict[str, dict[str, Any]] = {
    "gemma3_text": {"vocab_size": 262208, "num_attention_heads": 8, "max_position_embeddings": 131072},
    "qwen3_vl_text": {"max_position_embeddings": 128000},
    "qwen3_vl_moe_text": {
        **{"max_position_embeddings": 128000, "num_attention_heads": 16, "num_key_value_heads": 16},
        "num_experts_per_tok": 4,
    },
    "qwen2_5_vl_text": {"rms_norm_eps": 1e-5, "max_window_layers": 80},
}
_BASES = {"qwen3_vl_text": 5e5, "qwen3_vl_moe_text": 5e5, "qwen2_5_vl_text": 1e6}  # supposed in the same way
_AXES = ("mrope_section", "mrope_interleaved")  # by which angles of images differ from those of texts
# SmolVLM and Idefics 3 have these in text_config: what its projector reads, and an older one, which they do not use.
_IMAGE_KEYS_WITHIN = ("pixel_shuffle_factor", "perceiver_config")
_UNTIED = ("smolvlm", "idefics3")  # whose class supposes a head of its own, whatever text_config says
_OF_BOTH = (  # keys that stand beside text_config and are about the text model too
    *("dtype", "torch_dtype", "bos_token_id", "eos_token_id"),
    *("quantization_config", "compression_config", "quantization"),
)
_IMAGE_MODULES = (  # and those of sounds
    *("vision_tower", "multi_modal_projector", "visual"),
    *("embed_vision", "audio_tower", "embed_audio", "vision_model", "connector", "vision_adapter", "vision_projection"),
)
_LATER_MODULE = "mtp"  # layers that guess later tokens, which answers do not need
_AS_LAYERS = ("deepseek_v3", "glm4_moe_lite")  # model types that have them behind the others, as more of these
_WITH_LATER_TOKENS = (  # model types whose folders may have them
    *("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "ernie4_5_moe", "nemotron_h"),
    *_AS_LAYERS,
)
_LAYER = re.compile(r"model\.layers\.([0-9]{1,4})\.")


def text_config_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config of the text model alone; None where a config.json is not of a known model of images and texts.

    Raises UnsupportedArchitectureError for a text model of another type and for a key that nothing accounts for,
    ExportError for values that cannot be.
    """
    model_type, text = config.get("model_type"), given_text_config(config)
    if not isinstance(model_type, str) or model_type not in _TEXT_TYPES or text is None:
        return None
    if not isinstance(text, dict):
        raise ExportError(f"config.json gives text_config as {reprlib.repr(text)}: it must be an object.")
    text_type = text.get("model_type")
    if text_type not in _TEXT_TYPES[model_type]:
        raise UnsupportedArchitectureError(
            f"The text model of this {model_type} model is a {text_type!r:.80}, of which "
            f"{' and '.join(_TEXT_TYPES[model_type])} can be exported."
        )
    _check_class(config)
    _check_keys(config, text)
    is_tied = bool(text.get("tie_word_embeddings") or config.get("tie_word_embeddings", True))
    if model_type in _UNTIED:
        is_tied = bool(config.get("tie_word_embeddings"))
    beside = {key: config[key] for key in _OF_BOTH if config.get(key) is not None}
    own = {key: value for key, value in text.items() if key not in ("architectures", *_IMAGE_KEYS_WITHIN)}
    own = {**_SUPPOSED.get(text_type, {}), **own, **beside, "tie_word_embeddings": is_tied}
    return _of_texts(own, text_type) if text_type in _SAME else own


def given_text_config(config: Mapping[str, Any]) -> Any:
    """As a config.json has it; Qwen2.5-VL's makers have its keys beside vision_config."""
    if config.get("text_config") is not None or config.get("model_type") != "qwen2_5_vl":
        return config.get("text_config")
    return {key: value for key, value in config.items() if key not in _IMAGE_KEYS} | {"model_type": "qwen2_5_vl_text"}


def _of_texts(config: Mapping[str, Any], text_type: str) -> dict[str, Any]:
    """The config of the model of texts that computes the same."""
    changed = {key: value for key, value in config.items() if key not in _IMAGE_KEYS}
    given = [key for key in ("rope_scaling", "rope_parameters") if isinstance(changed.get(key), dict)]
    for key in given:
        rope = {name: value for name, value in changed[key].items() if name not in _AXES}
        kinds = {name: "default" for name in ("type", "rope_type") if rope.get(name) == "mrope"}
        changed[key] = rope | kinds
    if not any("rope_theta" in rope for rope in (changed, *(changed[key] for key in given))):
        changed["rope_theta"] = _BASES[text_type]
    if text_type == "qwen3_vl_moe_text":
        changed["norm_topk_prob"] = True  # whatever is given: its class does so
    return changed | {"model_type": _SAME[text_type]}


def text_tensors(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors of a folder by the names that the text model has for them, without those that it does not need.

    Others keep their names, and have no place in the text model. Raises ExportError for two of one name.
    """
    found: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        if _other_module(config, name) is None:
            own = own_name(name)
            if own in found:
                raise ExportError(
                    f"{name!r:.80} and {found[own].name!r:.80} are the same weights: fetch the model again."
                )
            found[own] = tensor
    return found


def other_modules(config: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """The modules that tensors belong to and the text model does not need, by name: for images, for later tokens."""
    modules = {_other_module(config, name) for name in names}
    return tuple(sorted(module for module in modules if module is not None))


def has_other_modules(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether tensors of a model of texts, whose config this is, are for later tokens too."""
    return config.get("model_type") in _WITH_LATER_TOKENS and _LATER_MODULE in other_modules(config, names)


def _other_module(config: Mapping[str, Any], name: str) -> str | None:
    num_layers, layer = config.get("num_hidden_layers"), _LAYER.match(name)
    if layer is not None and config.get("model_type") in _AS_LAYERS and isinstance(num_layers, int):
        return _LATER_MODULE if int(layer[1]) >= num_layers else None
    module = name.removeprefix("model.").partition(".")[0]
    if module.startswith(f"{_LATER_MODULE}_"):  # as ERNIE's makers name its parts
        return _LATER_MODULE
    return module if module in (*_IMAGE_MODULES, _LATER_MODULE) else None


def _check_class(config: Mapping[str, Any]) -> None:
    names = config.get("architectures") or []
    if not isinstance(names, list) or any(name not in _CLASSES for name in names):
        raise UnsupportedArchitectureError(
            f"The model is a {reprlib.repr(names)}; of models of images, {' and '.join(_CLASSES)} can be exported."
        )


def _check_keys(config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Every key beside text_config is known, or says the same as there."""
    text_type = str(text["model_type"])
    read = READ[_SAME.get(text_type, text_type)]
    known = (*_IMAGE_KEYS, *_OF_BOTH, "tie_word_embeddings")
    unknown = {}
    for key, value in config.items():
        is_repeated = key in read and value == text.get(key)
        if value is not None and key not in known and not is_harmless(key) and not is_repeated:
            unknown[key] = value
    if unknown:
        raise UnsupportedArchitectureError(
            f"config.json sets {named_keys(unknown)} beside text_config, where nothing is known to read that: it may "
            "change answers, so remove what has no effect."
        )
