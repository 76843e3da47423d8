"""The rotary position embedding that a config.json asks for, as transformers 5 has it.

Version 4 has `rope_theta`, `rope_scaling` and `partial_rotary_factor` side by side, and Gemma 3's
`rope_local_base_freq`. Version 5 has them in `rope_parameters`, once or for each type of layer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError

_PHI3_ORIGINAL_CONTEXT = 4096  # where it is not given
_LAYER_TYPES = ("full_attention", "sliding_attention")
_LOCAL_MODELS = (
    "gemma3_text",
    "gemma4_text",
    "gemma3n_text",
    "olmo3",
)  # whose windowed layers have an embedding of their own
_LOCAL_BASE_MODELS = ("gemma3_text", "gemma3n_text")  # where the base of these has a key of its own
_PARTIAL_MODELS = ("phi", "phi3", "glm4", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
_PROPORTIONAL_MODEL = "gemma4_text"  # where a share of the pairs rotates, at the pace that they have among all
_SUPPOSED: dict[str, dict[str, dict[str, Any]]] = {  # by model type, where nothing is given
    "gemma4_text": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
_OUTER = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")  # also given beside the scaling
_FACTORS = ("short_factor", "long_factor")
_PARAMETERS: dict[str, tuple[str, ...]] = {  # by type: what it needs, then what it takes
    "default": (),
    "linear": ("factor",),
    "proportional": (),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": (*_FACTORS, "original_max_position_embeddings"),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "proportional": ("factor",),
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("attention_factor", "factor"),
}
_QUERY_SCALE = {  # by model type: what a scale of queries by their position needs, whatever the type of the embedding
    "ministral3": ("llama_4_scaling_beta", "original_max_position_embeddings")
}
_MSCALE_MODEL = "phimoe"  # where LongRoPE has what sines and cosines are multiplied by, on either side of its switch
_MSCALES = ("short_mscale", "long_mscale")
_ALPHA_MODEL = "hunyuan_v1_dense"  # where "dynamic" is a base stretched once by alpha, whatever the text's length
_WITH_ALPHA = ("alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # all but the first of no effect
_OF_IMAGES = {  # by model type: which angles are of time, height and width, which are the same in a text
    "qwen3_5_text": ("mrope_section", "mrope_interleaved"),
    "qwen3_5_moe_text": ("mrope_section", "mrope_interleaved"),
}
_INERT = {"finetuned": (True, False), "attn_factor": (1,), "extrapolation_factor": (1,)}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Parameters by the names of `rope_parameters`; rope_theta and partial_rotary_factor only if the config gives them.

    full: of all layers, but for those of local. local: of the windowed layers of _LOCAL_MODELS, None in other models.
    """

    full: dict[str, Any]
    local: dict[str, Any] | None

    @property
    def parameters(self) -> dict[str, Any]:
        """The `rope_parameters` of the config class."""
        if self.local is None:
            return self.full
        return {"full_attention": self.full, "sliding_attention": self.local}

    @property
    def switch(self) -> int | None:
        """The context in tokens at which LongRoPE takes other factors; None for other types."""
        contexts = [
            each["original_max_position_embeddings"]
            for each in (self.full, self.local or {})
            if each.get("rope_type") == "longrope"
        ]
        return min(contexts, default=None)


def rope_config(config: Mapping[str, Any]) -> RopeConfig:
    """What a config asks for. Raises ExportError or UnsupportedArchitectureError with the key and the remedy."""
    by_type = _by_layer_type(config)
    full, local = by_type["full_attention"], by_type["sliding_attention"]
    has_local = config.get("model_type") in _LOCAL_MODELS
    if local != full and not has_local:
        raise UnsupportedArchitectureError(
            f"config.json gives windowed layers an embedding of their own ({local!r:.60}), "
            f"which a {config['model_type']} model does not have: correct rope_parameters."
        )
    for parameters in (full, local):
        partial = parameters.get("partial_rotary_factor", 1)
        is_partial = config.get("model_type") in _PARTIAL_MODELS or parameters["rope_type"] == "proportional"
        if partial > 1 or (partial != 1 and not is_partial):
            raise UnsupportedArchitectureError(
                f"config.json gives partial_rotary_factor as {partial}, which a {config['model_type']} model cannot "
                "have: correct it."
            )
    return RopeConfig(full, _local(config, local) if has_local else None)


def _local(config: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of windowed layers. Version 4 never scales them; Gemma 3's have a base of their own."""
    if config["model_type"] in _SUPPOSED:
        return dict(local)
    given = dict(local) if _is_nested(config) else {"rope_type": "default"}
    key = "rope_local_base_freq" if config["model_type"] in _LOCAL_BASE_MODELS else "rope_theta"
    theta = _agreeing(key, given.get("rope_theta"), config.get(key))
    return given if theta is None else given | {"rope_theta": theta}


def _is_nested(config: Mapping[str, Any]) -> bool:
    return any(name in _LAYER_TYPES for key in ("rope_parameters", "rope_scaling") for name in config.get(key) or ())


def _by_layer_type(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The parameters of each type of layer: rope_type, rope_theta and what the type takes."""
    given = [(key, config[key]) for key in ("rope_parameters", "rope_scaling") if config.get(key)]
    if len(given) > 1 and given[0][1] != given[1][1]:
        raise ExportError("config.json has rope_parameters and rope_scaling, and they differ: remove one of them.")
    supposed = _SUPPOSED.get(str(config.get("model_type")), {})
    name, parameters = given[0] if given else ("rope_parameters", supposed)
    if not isinstance(parameters, dict):
        raise ExportError(f"config.json gives {name} as {parameters!r:.80}: it must be an object.")
    if not _is_nested(config) and (given or not supposed):
        return dict.fromkeys(_LAYER_TYPES, _flat(config, name, parameters))
    others = [key for key in parameters if key not in _LAYER_TYPES]
    if others:
        raise UnsupportedArchitectureError(
            f"config.json has {others[0]!r:.80} beside the layer types in {name}, whose meaning is not known: "
            "give every value inside the layer type it belongs to."
        )
    nested = {key: value for key, value in parameters.items() if value is not None}
    if not all(isinstance(value, dict) for value in nested.values()):
        raise ExportError(f"config.json gives {name} as {parameters!r:.80}: each layer type must have an object.")
    if supposed:
        incomplete = [key for key in _LAYER_TYPES if "rope_theta" not in nested.get(key, {})]
        if incomplete:
            raise ExportError(f"config.json gives no rope_theta of {incomplete[0]} in {name}: fetch the model again.")
    if config.get("model_type") in _LOCAL_MODELS:
        return {key: _checked(config, name, nested.get(key, {}), key) for key in _LAYER_TYPES}
    used = [key for key in _LAYER_TYPES if key in (config.get("layer_types") or nested)]
    missing = [key for key in used if key not in nested]
    if missing or not used:
        raise ExportError(f"config.json gives no {name} for layers of {missing or 'any type'}: fetch the model again.")
    return {key: _checked(config, name, nested[key if key in used else used[0]], key) for key in _LAYER_TYPES}


def _flat(config: Mapping[str, Any], name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that are given once for all layers."""
    if config.get("model_type") in _LOCAL_MODELS and config.get("rope_parameters"):
        raise ExportError(
            f"config.json gives rope_parameters once, but a {config['model_type']} model has them for "
            "full_attention and for sliding_attention: give both."
        )
    return _checked(config, name, parameters)


def _checked(
    config: Mapping[str, Any], name: str, parameters: Mapping[str, Any], layer_type: str = "full_attention"
) -> dict[str, Any]:
    """One embedding's parameters, with those that config.json has beside them; every key is accounted for."""
    rope_type = _rope_type(config, name, parameters)
    own = _own_keys(str(config.get("model_type")), rope_type)
    has_alpha = config.get("model_type") == _ALPHA_MODEL and rope_type == "dynamic"
    known = (*_PARAMETERS[rope_type], *_OPTIONAL.get(rope_type, ()), *own, *(_WITH_ALPHA if has_alpha else ()))
    checked: dict[str, Any] = {"rope_type": rope_type}
    checked |= {"partial_rotary_factor": 1.0} if rope_type == "proportional" else {}
    for key, value in _without_context(config, parameters).items():
        if key in ("rope_type", "type", *_OF_IMAGES.get(str(config.get("model_type")), ())) or value is None:
            continue
        if key in known or key in ("rope_theta", "partial_rotary_factor"):
            _check_value(name, key, value)
            checked[key] = value
        elif not any(value == inert for inert in _INERT.get(key, ())):
            raise UnsupportedArchitectureError(
                f"config.json sets {key!r:.80} in {name} to {value!r:.80}, which {rope_type!r} is not known to read: "
                "it may change answers, so remove the key if it has no effect."
            )
    has_own_base = config.get("model_type") in _LOCAL_BASE_MODELS and layer_type == "sliding_attention"
    for key in _OUTER:
        outer = config.get(key)
        if outer is None or (key == "rope_theta" and has_own_base):
            continue
        if key in known or key in ("rope_theta", "partial_rotary_factor"):
            checked[key] = _agreeing(key, checked.get(key), outer)
    if "original_max_position_embeddings" in known:
        is_phi3 = config.get("model_type") == "phi3"
        original = _PHI3_ORIGINAL_CONTEXT if is_phi3 else config.get("max_position_embeddings")
        checked.setdefault("original_max_position_embeddings", original)
    missing = [key for key in (*_PARAMETERS[rope_type], *own) if checked.get(key) is None]
    if missing:
        raise ExportError(
            f"config.json gives no {missing[0]} in {name} of the type {rope_type!r}: fetch the model again."
        )
    return _with_attention_factor(config, checked) if rope_type == "longrope" else _with_alpha(config, checked)


def _own_keys(model_type: str, rope_type: str) -> tuple[str, ...]:
    """What a model type needs beside what the type of its embedding does."""
    if (model_type, rope_type) == (_MSCALE_MODEL, "longrope"):
        return _MSCALES
    return _QUERY_SCALE.get(model_type, ())


def _with_alpha(config: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The base that alpha, if there is one, stretches for all lengths, as llama.cpp's converter writes it too."""
    if "alpha" not in parameters:
        return dict(parameters)
    size = config.get("head_dim") or config.get("hidden_size", 0) // config.get("num_attention_heads", 1)
    if size < 4 or "rope_theta" not in parameters:
        raise ExportError("config.json gives alpha in rope_scaling, but no rope_theta or head_dim: fetch it again.")
    base = parameters["rope_theta"] * parameters["alpha"] ** (size / (size - 2))
    return {"rope_type": "default", "rope_theta": base}


def _without_context(config: Mapping[str, Any], parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Makers of models whose queries grow repeat max_position_embeddings there, which must be the same."""
    key = "max_position_embeddings"
    if config.get("model_type") not in _QUERY_SCALE or key not in parameters:
        return parameters
    _agreeing(key, parameters[key], config.get(key))
    return {name: value for name, value in parameters.items() if name != key}


def _rope_type(config: Mapping[str, Any], name: str, parameters: Mapping[str, Any]) -> str:
    rope_type = _agreeing("rope_type", parameters.get("rope_type"), parameters.get("type")) or "default"
    if rope_type == "su" or (
        rope_type == "yarn" and config.get("model_type") == "phi3" and "short_factor" in parameters
    ):
        return "longrope"  # early names of it
    is_own = rope_type == "proportional" and config.get("model_type") != _PROPORTIONAL_MODEL
    is_own |= config.get("model_type") == _MSCALE_MODEL and rope_type not in ("default", "longrope")
    if not isinstance(rope_type, str) or rope_type not in _PARAMETERS or is_own:
        raise UnsupportedArchitectureError(
            f"The RoPE scaling {rope_type!r:.80} cannot be exported of a {config.get('model_type')} model; known are: "
            f"{', '.join(_PARAMETERS)}."
        )
    return rope_type


def _with_attention_factor(config: Mapping[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """LongRoPE's factor of sines and cosines as a value, since versions read `factor` differently."""
    longest, original = config["max_position_embeddings"], parameters["original_max_position_embeddings"]
    ratio = longest / original
    factor = parameters.pop("factor", ratio)
    if _MSCALES[0] in parameters:
        parameters["attention_factor"] = parameters[_MSCALES[0]]
    if "attention_factor" not in parameters:
        if not math.isclose(factor, ratio, rel_tol=1e-3):
            raise ExportError(
                f"config.json gives LongRoPE's factor as {factor}, but the contexts of {longest} and {original} tokens "
                "give another: give attention_factor."
            )
        stretched = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
        parameters["attention_factor"] = stretched
    return parameters


def _check_value(name: str, key: str, value: object) -> None:
    if key == "truncate":
        is_usable, words = isinstance(value, bool), "true or false"
    elif key in _FACTORS:
        is_usable = isinstance(value, list) and bool(value) and all(_is_positive(item) for item in value)
        words = "a list of numbers above 0"
    elif key == "original_max_position_embeddings":
        is_usable, words = type(value) is int and value > 1, "a whole number above 1"
    elif key == "llama_4_scaling_beta":
        is_usable, words = value == 0 or _is_positive(value), "a number, 0 or more"
    else:
        is_usable, words = _is_positive(value), "a number above 0"
    if not is_usable:
        raise ExportError(f"config.json gives {key} in {name} as {value!r:.80}, which must be {words}: correct it.")


def _is_positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf  # type: ignore[operator]


def _agreeing(key: str, first: Any, second: Any) -> Any:
    """The one that is given; both must be the same."""
    if first is not None and second is not None and first != second:
        raise ExportError(f"config.json gives {key} twice, as {first!r:.40} and {second!r:.40}: remove one of them.")
    return second if first is None else first
