"""A folder's config.json, of transformers 4 or 5, as the class of the installed transformers reads it."""

from collections.abc import Mapping
from typing import Any

from reader_edge_export.sources.config_keys import READ, check_keys
from reader_edge_export.sources.rope_form import rope_form
from reader_edge_runtime.errors import ExportError, UnsupportedArchitectureError

_ROPE_KEYS = (
    *("rope_scaling", "rope_parameters", "rope_theta", "rope_local_base_freq", "partial_rotary_factor"),
    "original_max_position_embeddings",
)
_ALIASES = {  # of gpt2: general names of its keys
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "n_ctx": "n_positions",
}
_FLOATS = (
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    *("attn_logit_softcapping", "final_logit_softcapping", "norm_eps"),
)
_WHOLE = ("query_pre_attn_scalar",)
_KNOWN_LAYERS = ("full_attention", "sliding_attention")
_OWN_LAYERS = {"lfm2": ("full_attention", "conv")}  # by model type, where they are others
_EXAONE_PATTERN = 4
_DEFAULT_PATTERN = 6  # Gemma 3: every sixth layer attends to all tokens


def class_form(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the config class, every key that says what is computed translated or passed on.

    Raises ExportError or UnsupportedArchitectureError, naming a key that cannot be accounted for.
    """
    check_keys(config)
    model_type = str(config["model_type"])
    form = {key: _typed(key, config[key]) for key in READ[model_type] if key in config and key not in _ROPE_KEYS}
    if model_type == "gpt2":
        form = _without_aliases(form)
    else:
        form |= _rotary(config)
    if model_type.startswith("gemma"):
        _set_gemma_activation(form, model_type)
    if model_type == "gemma3_text":
        _set_pattern(form)
    if model_type == "exaone4":
        _set_letters(form)
    if model_type == "lfm2":
        _set_lfm2(form)
    if "layer_types" in READ[model_type]:
        _check_layer_types(form, model_type)
    if form.get("head_dim", 0) is None:
        del form["head_dim"]  # as if absent: hidden size over heads
    if form.get("num_key_value_heads", 0) is None and "num_attention_heads" in form:
        form["num_key_value_heads"] = form["num_attention_heads"]  # some classes take no null, which means this
    if form.get("max_window_layers", 0) is None and not form.get("use_sliding_window"):
        del form["max_window_layers"]
    # A padding row is of no use here, and its usual id may lie beyond a small vocabulary.
    return {**form, "model_type": model_type, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def _typed(key: str, value: object) -> object:
    """A number as its class wants it: other writers of JSON leave ".0" out, or add it."""
    if key in _FLOATS and type(value) is int:
        return float(value)
    return int(value) if key in _WHOLE and isinstance(value, float) and value.is_integer() else value


def _rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_form(config)
    _check_factors(config, rope.full)
    form: dict[str, Any] = {"rope_parameters": rope.parameters}
    if config["model_type"] == "phi3" and rope.switch is not None:
        form["original_max_position_embeddings"] = rope.switch  # which its class prefers to that of rope_parameters
    return form


def _check_factors(config: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    """LongRoPE has a factor for each pair of values that rotate."""
    width = config.get("head_dim") or config.get("hidden_size", 0) // config.get("num_attention_heads", 1)
    num_pairs = (int(width * rope.get("partial_rotary_factor", 1)) + 1) // 2
    for name in ("short_factor", "long_factor"):
        factors = rope.get(name)
        if factors is not None and width and len(factors) != num_pairs:
            raise ExportError(
                f"config.json gives {len(factors)} values of {name}, of which there are {num_pairs}: correct it."
            )


def _without_aliases(form: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for key, value in form.items():
        name = _ALIASES.get(key, key)
        if named.setdefault(name, value) != value:
            raise ExportError(f"config.json gives {name} twice, as {named[name]} and {value}: remove one of them.")
    return named


def _set_gemma_activation(form: dict[str, Any], model_type: str) -> None:
    """`hidden_activation` overrules the older `hidden_act`; each class reads one of them."""
    older, newer = form.pop("hidden_act", None), form.pop("hidden_activation", None)
    if model_type == "gemma":
        activation = newer or older
        # Early configs of the makers say "gelu" and mean the approximation, as the class has it too.
        form |= {"hidden_act": "gelu_pytorch_tanh" if activation == "gelu" else activation} if activation else {}
    elif newer:
        form["hidden_activation"] = newer
    elif older not in (None, "gelu_pytorch_tanh"):
        raise ExportError(
            f"config.json gives hidden_act as {older!r}, which a {model_type} model does not read: give "
            "hidden_activation."
        )


def _set_pattern(form: dict[str, Any]) -> None:
    """Gemma 3's older way to say which layers have a window."""
    patterns = [form.pop(key, None) for key in ("sliding_window_pattern", "_sliding_window_pattern")]
    pattern = next((pattern for pattern in patterns if pattern is not None), _DEFAULT_PATTERN)
    num_layers = form.get("num_hidden_layers")
    if form.get("layer_types") is None and num_layers is not None:
        form["layer_types"] = [_KNOWN_LAYERS[(layer + 1) % pattern != 0] for layer in range(num_layers)]


def _set_letters(form: dict[str, Any]) -> None:
    """EXAONE's pattern of layers, L with a window and G without, or a number: each so many-th is without."""
    pattern, num_layers = form.pop("sliding_window_pattern", None), form.get("num_hidden_layers")
    if form.get("layer_types") is not None or num_layers is None:
        return
    has_window = form.get("sliding_window", 1) is not None
    if pattern == 0 and has_window:
        raise ExportError("config.json gives sliding_window_pattern as 0 beside a window: remove one of them.")
    pattern = pattern or _EXAONE_PATTERN
    letters = pattern if isinstance(pattern, str) else "L" * (pattern - 1) + "G"
    windowed = [has_window and letters[layer % len(letters)] == "L" for layer in range(num_layers)]
    form["layer_types"] = [_KNOWN_LAYERS[is_windowed] for is_windowed in windowed]


def _set_lfm2(form: dict[str, Any]) -> None:
    """Older names of LFM2's keys: which layers attend, whose others are convolutions, the MLP's size, tied weights."""
    for older, newer in (("block_ff_dim", "intermediate_size"), ("tie_embedding", "tie_word_embeddings")):
        value = form.pop(older, None)
        if value is not None and form.setdefault(newer, value) != value:
            raise ExportError(f"config.json gives {older} as {value} and {newer} as {form[newer]}: remove one of them.")
    indices, num_layers = form.pop("full_attn_idxs", None), form.get("num_hidden_layers")
    if indices is None or num_layers is None:
        return
    layer_types = ["full_attention" if layer in indices else "conv" for layer in range(num_layers)]
    if (form.get("layer_types") or layer_types) != layer_types or not all(0 <= each < num_layers for each in indices):
        raise ExportError(
            f"config.json gives full_attn_idxs as {indices!r:.80}, which are not the layers of full_attention among "
            f"its {num_layers}: correct it."
        )
    form["layer_types"] = layer_types


def _check_layer_types(form: Mapping[str, Any], model_type: str) -> None:
    layer_types = form.get("layer_types")
    if layer_types is None:
        return
    known = _OWN_LAYERS.get(model_type, _KNOWN_LAYERS)
    unknown = [name for name in layer_types if name not in known]
    if unknown:
        raise UnsupportedArchitectureError(
            f"config.json has a layer of {unknown[0]!r:.80} in layer_types, which cannot be exported; known are: "
            f"{', '.join(known)}."
        )
    num_layers = form.get("num_hidden_layers", len(layer_types))
    if len(layer_types) != num_layers:
        raise ExportError(f"config.json has {len(layer_types)} layer_types for {num_layers} layers: correct it.")
    own_window = None if model_type == "smollm3" else 1  # what its class has where the key is absent
    has_window = form.get("use_sliding_window", not model_type.startswith(("qwen", "smollm3")))
    is_windowed = "sliding_attention" in layer_types
    if is_windowed and not (has_window and form.get("sliding_window", own_window) is not None):
        raise ExportError(
            "config.json has layers of sliding_attention, but use_sliding_window or sliding_window says that there is "
            "no window: correct it."
        )
