"""Which layers attend to all tokens or to a window, and which keep states: older keys as transformers 5 has them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from reader_edge_export.sources.config.config_values import ENDLESS, MAX_LAYERS
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError

_KNOWN_LAYERS = ("full_attention", "sliding_attention")
_OWN_LAYERS = {  # by model type, where they are others
    "lfm2": ("full_attention", "conv"),
    "qwen3_5_text": ("full_attention", "linear_attention"),
    "granitemoehybrid": ("full_attention", "linear_attention"),
    "qwen3_5_moe_text": ("full_attention", "linear_attention"),
    "lfm2_moe": ("full_attention", "conv"),
    "qwen3_next": ("full_attention", "linear_attention"),
    "nemotron_h": ("full_attention", "linear_attention", "mlp", "moe"),
}
_GRANITE_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}  # those of transformers 4
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}  # of Nemotron-H
_EXAONE_PATTERN = _COHERE_PATTERN = 4
_BY_LAYER = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}  # Gemma 4's
_MAX_DIGITS = 8  # of a layer's number
_DEFAULT_PATTERN = 6  # Gemma 3 and 4: every sixth layer attends to all tokens


def set_layer_types(args: dict[str, Any], model_type: str) -> None:
    """Translate what the arguments say in older keys, and check it.

    Raises UnsupportedArchitectureError for a type that is not known, ExportError where keys contradict each other.
    """
    if model_type in _TRANSLATED:
        _TRANSLATED[model_type](args)
    _check_layer_types(args, model_type)


def _set_pattern(args: dict[str, Any], default: int = _DEFAULT_PATTERN) -> None:
    """The older way to say which layers have a window, Gemma 3's and Cohere's: all but each so many-th."""
    patterns = [args.pop(key, None) for key in ("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")]
    given = [pattern for pattern in patterns if pattern is not None]
    if len(set(given)) > 1:
        raise ExportError(
            f"config.json gives {given[0]} and {given[1]} as the layers from one without a window to the "
            "next, under two keys: remove one of them."
        )
    pattern, num_layers = given[0] if given else default, args.get("num_hidden_layers")
    if args.get("layer_types") is None and num_layers is not None:
        args["layer_types"] = [_KNOWN_LAYERS[(layer + 1) % pattern != 0] for layer in range(num_layers)]


def _set_letters(args: dict[str, Any]) -> None:
    """EXAONE's pattern of layers, L with a window and G without, or a number: each so many-th is without."""
    pattern, num_layers = args.pop("sliding_window_pattern", None), args.get("num_hidden_layers")
    if args.get("layer_types") is not None or num_layers is None:
        return
    has_window = args.get("sliding_window", 1) is not None
    if pattern == 0 and has_window:
        raise ExportError("config.json gives sliding_window_pattern as 0 beside a window: remove one of them.")
    pattern = pattern or _EXAONE_PATTERN
    letters = pattern if isinstance(pattern, str) else "L" * (pattern - 1) + "G"
    windowed = [has_window and letters[layer % len(letters)] == "L" for layer in range(num_layers)]
    args["layer_types"] = [_KNOWN_LAYERS[is_windowed] for is_windowed in windowed]


def _set_lfm2(args: dict[str, Any]) -> None:
    """Older names of LFM2's keys: which layers attend, whose others are convolutions, the MLP's size, tied weights."""
    for older, newer in (("block_ff_dim", "intermediate_size"), ("tie_embedding", "tie_word_embeddings")):
        value = args.pop(older, None)
        if value is not None and args.setdefault(newer, value) != value:
            raise ExportError(f"config.json gives {older} as {value} and {newer} as {args[newer]}: remove one of them.")
    indices, num_layers = args.pop("full_attn_idxs", None), args.get("num_hidden_layers")
    if indices is None or num_layers is None:
        return
    layer_types = ["full_attention" if layer in indices else "conv" for layer in range(num_layers)]
    if (args.get("layer_types") or layer_types) != layer_types or not all(0 <= each < num_layers for each in indices):
        raise ExportError(
            f"config.json gives full_attn_idxs as {indices!r:.80}, which are not the layers of full_attention among "
            f"its {num_layers}: correct it."
        )
    args["layer_types"] = layer_types


def _set_lfm2_moe(args: dict[str, Any]) -> None:
    """The same; unlike LFM2's, its class has no default for which layers attend."""
    _set_lfm2(args)
    if args.get("layer_types") is None:
        raise ExportError("config.json gives no layer_types, which say what layers attend: fetch the model again.")


def _set_interval(args: dict[str, Any]) -> None:
    """Qwen 3.5's older way to say which layers attend: each so many-th."""
    interval, num_layers = args.pop("full_attention_interval", None), args.get("num_hidden_layers")
    if interval is None or num_layers is None:
        return
    kinds = ("full_attention", "linear_attention")
    layer_types = [kinds[(layer + 1) % interval != 0] for layer in range(num_layers)]
    if (args.get("layer_types") or layer_types) != layer_types:
        raise ExportError(
            f"config.json gives full_attention_interval as {interval}, and other layer_types: remove one of them."
        )
    args["layer_types"] = layer_types


def _set_granite(args: dict[str, Any]) -> None:
    """Granite's names of layers in transformers 4, under either of two keys."""
    older, layer_types = args.pop("layers_block_type", None), args.get("layer_types")
    if older is not None and layer_types is not None and older != layer_types:
        raise ExportError("config.json has layers_block_type and other layer_types: remove one of them.")
    named = older or layer_types
    if named is not None:
        args["layer_types"] = [_GRANITE_NAMES.get(name, name) for name in named]


def nemotron_layers(config: Mapping[str, Any]) -> list[str]:
    """The kinds of Nemotron-H's layers, by names or a letter each; [] where they are not given."""
    named = config.get("layers_block_type") or config.get("layer_types")
    if named:
        return [_GRANITE_NAMES.get(name, name) for name in named]
    return [_LETTERS[letter] for letter in config.get("hybrid_override_pattern") or ""]


def _set_nemotron(args: dict[str, Any]) -> None:
    """Kinds of layers, and how short a step of the recurrence may be.

    The maker's code bounds steps by time_step_limit. transformers reads time_step_min, which the maker draws first
    weights by, and bounds the steps of prompts alone.
    """
    kinds = nemotron_layers(args)
    keys = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    given = [nemotron_layers({key: value}) for key in keys if (value := args.pop(key, None))]
    if not 0 < len(kinds) <= MAX_LAYERS or any(each != kinds for each in given):
        raise ExportError(
            f"config.json names {len(kinds)} layers in layers_block_type or hybrid_override_pattern, of which there "
            f"must be from 1 to {MAX_LAYERS}, the same in both: fetch the model again."
        )
    args["layer_types"] = kinds
    least, most = args.pop("time_step_limit", None) or (0.0, ENDLESS)
    if most != ENDLESS:
        raise UnsupportedArchitectureError(
            f"config.json gives time_step_limit as {least} to {most}, whose upper end transformers does not apply."
        )
    args["time_step_min"] = least


def _check_bases(args: dict[str, Any]) -> None:
    """Muse Glimmer's base of each layer's positions, nought where it has none: its class reads no more of them."""
    bases, theta = args.get("layer_rope_theta"), args["rope_parameters"].get("rope_theta")
    if args.get("layer_rope_theta", bases) is None:
        del args["layer_rope_theta"]
    if bases is not None and (theta is None or not set(bases) <= {0, theta}):
        raise UnsupportedArchitectureError(
            f"config.json gives layer_rope_theta as {bases!r:.80}, of which each must be 0 or rope_theta, {theta}."
        )
    if bases is not None and len(bases) != args.get("num_hidden_layers", len(bases)):
        raise ExportError(f"config.json gives {len(bases)} values of layer_rope_theta: correct it.")


def _set_gemma4(args: dict[str, Any]) -> None:
    """Gemma 4's sizes of layers without a window: transformers 5.23 writes them for each layer, and reads them once."""
    num_layers = args.get("num_hidden_layers")
    if args.get("layer_types") is None and num_layers is not None:
        args["layer_types"] = [_KNOWN_LAYERS[(layer + 1) % _DEFAULT_PATTERN != 0] for layer in range(num_layers)]
        args["layer_types"][-1] = "full_attention"
    layer_types = args.get("layer_types") or []
    if layer_types[-1:] == ["sliding_attention"]:
        raise ExportError("config.json gives the last of its layer_types a window, which Gemma 4 has not: correct it.")
    if args.get("hidden_size_per_layer_input") == 0:  # without such inputs nothing has this size
        args.pop("vocab_size_per_layer_input", None)
    if args.get("vocab_size_per_layer_input", args.get("vocab_size")) != args.get("vocab_size"):
        raise ExportError(
            f"config.json gives vocab_size_per_layer_input as {args['vocab_size_per_layer_input']}, and vocab_size as "
            f"{args.get('vocab_size')}, which must be the same: correct it."
        )
    by_layer = args.pop("per_layer_config", None)
    if by_layer is not None:
        _set_sizes_of_full_layers(args, by_layer, layer_types)


def _set_sizes_of_full_layers(args: dict[str, Any], by_layer: Mapping[str, Any], layer_types: list[str]) -> None:
    usual = {key: args.get(key) for key in _BY_LAYER}
    numbered = {int(key) if key.isdecimal() and len(key) < _MAX_DIGITS else key: each for key, each in by_layer.items()}
    given = [numbered.get(layer, {}) for layer in range(len(layer_types))]
    windowed = [each for each, kind in zip(given, layer_types, strict=True) if kind == "sliding_attention"]
    full = [each for each, kind in zip(given, layer_types, strict=True) if kind != "sliding_attention"]
    is_known = all(isinstance(each, dict) and each.keys() <= _BY_LAYER.keys() for each in given)
    if not is_known or len(by_layer) != sum(map(bool, given)) or any(usual | each != usual for each in windowed):
        raise UnsupportedArchitectureError(
            f"config.json gives per_layer_config as {by_layer!r:.200}, of which {' and '.join(_BY_LAYER)} of layers "
            "without a window alone can be exported."
        )
    sizes = usual | (full[0] if full else {})
    if any(usual | each != sizes for each in full):
        raise UnsupportedArchitectureError("config.json gives layers without a window sizes that differ.")
    for key, name in _BY_LAYER.items():
        value = sizes[key]
        if args.get(name, value) != value:
            raise ExportError(f"config.json gives {name} as {args[name]}, and per_layer_config as {value}: remove one.")
        if key == "num_key_value_heads" and value == usual[key]:
            args.pop(name, None)
        elif key == "num_key_value_heads" and not args.get("attention_k_eq_v"):
            raise UnsupportedArchitectureError(
                f"config.json gives layers without a window {value} heads of keys and values and others {usual[key]}, "
                "which needs attention_k_eq_v."
            )
        elif value is not None:
            args[name] = value


def _check_gemma3n(args: dict[str, Any]) -> None:
    """Gemma 3n's counts, which its class does not compare."""
    num_layers, num_shared = args.get("num_hidden_layers"), args.get("num_kv_shared_layers", 0)
    if num_layers is not None and num_shared >= num_layers:
        raise ExportError(f"config.json gives {num_shared} num_kv_shared_layers of {num_layers} layers: correct it.")
    active, num_inputs = args.get("altup_active_idx", 0), args.get("altup_num_inputs", 4)
    if active >= num_inputs:
        raise ExportError(f"config.json gives altup_active_idx as {active} of {num_inputs} inputs: correct it.")


def _check_layer_types(args: Mapping[str, Any], model_type: str) -> None:
    layer_types = args.get("layer_types")
    if layer_types is None:
        return
    known = _OWN_LAYERS.get(model_type, _KNOWN_LAYERS)
    unknown = [name for name in layer_types if name not in known]
    if unknown:
        raise UnsupportedArchitectureError(
            f"config.json has a layer of {unknown[0]!r:.80} in layer_types, which cannot be exported; known are: "
            f"{', '.join(known)}."
        )
    num_layers = args.get("num_hidden_layers", len(layer_types))
    if len(layer_types) != num_layers:
        raise ExportError(f"config.json has {len(layer_types)} layer_types for {num_layers} layers: correct it.")
    own_window = None if model_type == "smollm3" else 1  # what its class has where the key is absent
    has_window = args.get("use_sliding_window", not model_type.startswith(("qwen", "smollm3")))
    is_windowed = "sliding_attention" in layer_types
    if is_windowed and not (has_window and args.get("sliding_window", own_window) is not None):
        raise ExportError(
            "config.json has layers of sliding_attention, but use_sliding_window or sliding_window says that there is "
            "no window: correct it."
        )


_TRANSLATED: dict[str, Callable[[dict[str, Any]], None]] = {  # by model type, older ways to say it
    "gemma3_text": _set_pattern,
    "exaone4": _set_letters,
    "cohere2": partial(_set_pattern, default=_COHERE_PATTERN),
    "lfm2": _set_lfm2,
    "qwen3_5_text": _set_interval,
    "granitemoehybrid": _set_granite,
    "gemma4_text": _set_gemma4,
    "gemma3n_text": _check_gemma3n,
    "qwen3_5_moe_text": _set_interval,
    "lfm2_moe": _set_lfm2_moe,
    "qwen3_next": _set_interval,
    "muse_glimmer_text": _check_bases,
    "nemotron_h": _set_nemotron,
}
