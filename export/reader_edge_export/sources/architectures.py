"""Which models can be exported, decided from `config.json` alone, before anything heavy is imported.

Each refusal is about mathematics that the tree attention would not reproduce: better no package than a wrong one.
"""

from collections.abc import Mapping
from typing import Any

from reader_edge_export.sources.config.config_keys import READ_OF_TEXTS
from reader_edge_export.sources.config.config_values import MAX_LAYERS
from reader_edge_export.sources.config.layer_types import nemotron_layers
from reader_edge_export.sources.config.rope_config import rope_config
from reader_edge_export.sources.quantized.formats import quantization_of
from reader_edge_runtime.errors import ConfigError, ExportError, UnsupportedArchitectureError
from reader_edge_runtime.package.manifest import HALF_PRECISIONS

SUPPORTED = tuple(READ_OF_TEXTS)  # values of model_type

_MIXTURES_BY_KEY = {"gemma4_text": "enable_moe_block", "granitemoehybrid": "num_local_experts"}  # where not all are
_MIXTURE_BY_LAYERS = "nemotron_h"


def _reading(*keys: str) -> tuple[str, ...]:
    return tuple(model_type for model_type, read in READ_OF_TEXTS.items() if not read.isdisjoint(keys))


# Those with layers that keep states, by the width of a convolution; that keep a latent in place of keys; whose rows are
# sent to experts.
RECURRENT = _reading("conv_L_cache", "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel")
LATENT = _reading("kv_lora_rank")
MIXTURES = tuple(
    model_type
    for model_type in _reading("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    if model_type not in (*_MIXTURES_BY_KEY, _MIXTURE_BY_LAYERS)
)
UNEVEN = ("gemma4_text", "gemma3n_text")  # those whose layers differ in what they keep of a token
_OTHER_TOKENS = "whose layers choose the tokens that they attend to"
_OTHER_ROUTER = "whose router chooses experts in a way of its own"
REFUSED = {  # by model type: what the model is, and what of it has no operator here
    "glm4_moe": ("GLM with experts", _OTHER_ROUTER),
    "glm_moe_dsa": ("GLM with experts", _OTHER_TOKENS),
    **dict.fromkeys(("glm5_next", "glm5_next_text"), ("GLM 5 Next", _OTHER_TOKENS)),
    **dict.fromkeys(("qwen4_exp", "qwen4_exp_text"), ("the architecture of Qwen3.8-Flash-Next", _OTHER_TOKENS)),
    "kimi_linear": ("Kimi Linear", "whose states fade by other paces in each of their channels"),
    "minicpm": ("MiniCPM", "for which transformers has no module (MiniCPM3 is taken)"),
    "internlm2": ("InternLM 2", "for which transformers has no module (InternLM 3 is taken)"),
    "exaone_moe": ("EXAONE with experts", _OTHER_ROUTER),
    "cohere2_moe": ("Cohere with experts", _OTHER_ROUTER),
    "phi4_multimodal": ("Phi 4 of images and sounds", "whose text model is not taken out of its folder"),
    "phi4flash": ("Phi 4 Flash", "whose layers share states and subtract one attention from another"),
}
MIN_CONTEXT, _MAX_CONTEXT = 16, 1 << 28
_IN_IMAGES_ALONE = ("gemma4_text", "use_bidirectional_attention", "vision")  # attention in text stays causal


def check_architecture(config: Mapping[str, Any]) -> None:
    """Raise UnsupportedArchitectureError, with the reason in one sentence, for a model that cannot be exported.

    Raises ExportError for a number of layers that cannot be.
    """
    model_type = config.get("model_type")
    if model_type is None:
        raise UnsupportedArchitectureError(
            "config.json has no model_type, so it is not that of a Hugging Face folder: give that folder, of gpt-oss "
            "the one above 'original'."
        )
    if isinstance(model_type, str) and model_type in REFUSED:
        name, reason = REFUSED[model_type]
        raise UnsupportedArchitectureError(
            f"The model type {model_type!r} is {name}, {reason}, and cannot be exported; supported are: "
            f"{', '.join(SUPPORTED)}."
        )
    if "text_config" in config:
        raise UnsupportedArchitectureError(
            f"The model type {model_type!r} has more than a text decoder: give its text model alone."
        )
    if model_type not in SUPPORTED:
        raise UnsupportedArchitectureError(
            f"The model type {model_type!r} cannot be exported; supported are: {', '.join(SUPPORTED)}."
        )
    _check_is_decoder(config)
    key = "n_layer" if "n_layer" in config and "num_hidden_layers" not in config else "num_hidden_layers"
    num_layers = config.get(key, 1)
    if type(num_layers) is not int or not 0 < num_layers <= MAX_LAYERS:
        shown = "null" if num_layers is None else f"{num_layers!r:.80}"
        raise ExportError(
            f"config.json, or the GGUF file in its place, gives {key} as {shown}, which must be a whole number from 1 "
            f"to {MAX_LAYERS}: fetch the model again."
        )


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Whether layers of a model of a supported type send rows to experts."""
    model_type = str(config["model_type"])
    if model_type == _MIXTURE_BY_LAYERS:
        return "moe" in nemotron_layers(config)
    return model_type in MIXTURES or bool(config.get(_MIXTURES_BY_KEY.get(model_type, "")))


def check_options(config: Mapping[str, Any], precision: str, attention: str) -> None:
    """Raise ConfigError for a precision or attention that models of a config's type are not exported with.

    config: of a supported model type. precision: as in ExportOptions. attention: one of ATTENTIONS.
    """
    kinds = {
        "layers that keep states": config["model_type"] in RECURRENT,
        "layers that send tokens to experts": is_mixture(config),
        "layers that differ in what they keep": config["model_type"] in UNEVEN,
        "layers that keep latents": config["model_type"] in LATENT,
    }
    special = [kind for kind, has_such in kinds.items() if has_such]
    is_for_gpus = precision in HALF_PRECISIONS
    if special and (attention != "exact" or is_for_gpus):
        exact = "" if attention == "exact" else f"attention 'exact' instead of {attention!r}"
        other = f"precision 'int8' or another instead of {precision!r}, which is made for GPUs" if is_for_gpus else ""
        raise ConfigError(
            f"A {config['model_type']} model has {' and '.join(special)}, which are exported for CPUs alone: use "
            f"{' and '.join(filter(None, (exact, other)))}."
        )


def max_context_of(config: Mapping[str, Any], wanted: int | None) -> int:
    """Tokens of context to export: the model's own limit, or as many as wanted.

    Raises ExportError where that is more than the limit, or the position embedding would change within that length.
    """
    limit = config.get("max_position_embeddings") or config.get("n_positions")
    if not isinstance(limit, int) or not MIN_CONTEXT <= limit <= _MAX_CONTEXT:
        raise ExportError(
            f"config.json, or the GGUF file in its place, gives max_position_embeddings as {limit!r:.80}, which must "
            f"be from {MIN_CONTEXT} to {_MAX_CONTEXT}: fetch the model again."
        )
    max_context = limit if wanted is None else wanted
    if max_context > limit:
        raise ExportError(f"max_context is {max_context}, but the model's own ends at {limit}: ask for no more.")
    _check_rope(config, max_context)
    return max_context


def _check_is_decoder(config: Mapping[str, Any]) -> None:
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ExportError(
            f"config.json gives architectures as {names!r:.80}, which must be a list of texts: correct it."
        )
    if names and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise UnsupportedArchitectureError(f"The model is a {names[0]}, not a text generator (a ...ForCausalLM).")
    quantization_of(config)
    for name in ("add_cross_attention", "use_bidirectional_attention", "is_encoder_decoder"):
        if config.get(name) and (config["model_type"], name, config[name]) != _IN_IMAGES_ALONE:
            raise UnsupportedArchitectureError(f"The config sets {name}, which tree attention cannot reproduce.")


def _check_rope(config: Mapping[str, Any], max_context: int) -> None:
    switch = rope_config(config).switch
    if switch is not None and max_context > switch:
        raise ExportError(
            f"This model's position embedding switches at {switch} tokens, which a fixed graph cannot follow: "
            f"export with --max-context {switch} or less."
        )
