"""A folder's config.json, of transformers 4 or 5, as the config class of the installed transformers takes it."""

from collections.abc import Mapping
from typing import Any

from reader_edge_export.sources.config.config_keys import READ, check_keys
from reader_edge_export.sources.config.config_values import ENDLESS, MAX_ALL_EXPERTS, MAX_EXPERTS
from reader_edge_export.sources.config.layer_types import set_layer_types
from reader_edge_export.sources.config.rope_config import rope_config
from reader_edge_runtime.errors import ExportError

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
    *("attn_logit_softcapping", "final_logit_softcapping", "norm_eps", "swiglu_alpha", "swiglu_limit", "logit_scale"),
    *("routed_scaling_factor", "moe_norm_min", "qk_scale_factor", "output_multiplier", "post_norm_eps"),
    *("embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier"),
    *("attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"),
)
_FLOAT_LISTS = ("mlp_multipliers", "ssm_multipliers", "activation_sparsity_pattern")
_SCALED = ("gpt_oss", "apertus")  # whose classes suppose a stretched position embedding
_WHOLE = ("query_pre_attn_scalar",)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def hf_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the config class, every key that says what is computed translated or passed on.

    Raises ExportError or UnsupportedArchitectureError, naming a key that cannot be accounted for.
    """
    check_keys(config)
    model_type = str(config["model_type"])
    _check_heads(config)
    args = {key: _typed(key, config[key]) for key in READ[model_type] if key in config and key not in _ROPE_KEYS}
    if model_type == "gpt2":
        args = _without_aliases(args)
    elif model_type != "nemotron_h":  # which has no positions
        args |= _rotary(config)
    if model_type.startswith("gemma"):
        _set_gemma_activation(args, model_type)
    _set_experts(args, model_type)
    if "kv_lora_rank" in READ[model_type]:
        _set_latent(args, model_type)
    if "layer_types" in READ[model_type]:
        set_layer_types(args, model_type)
    _check_all_experts(args)
    _replace_nulls(args)
    # A padding row is of no use here, and its usual id may lie beyond a small vocabulary.
    return {**args, "model_type": model_type, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def _replace_nulls(args: dict[str, Any]) -> None:
    """Some classes take no null for what means the same as it."""
    meant = {"block_ffn_dim_multiplier": 1.0, "num_key_value_heads": args.get("num_attention_heads")}
    for key, value in meant.items():
        if args.get(key, 0) is None and value is not None:
            args[key] = value
    absent = ["head_dim", "time_step_limit", "mlp_layer_types"]  # of heads: hidden size over heads
    absent += [] if args.get("use_sliding_window") else ["max_window_layers"]
    for key in absent:
        if args.get(key, 0) is None:
            del args[key]


def _typed(key: str, value: object) -> object:
    """A number as its class wants it: other writers of JSON leave ".0" out, or add it."""
    if key in _FLOATS and type(value) is int:
        return float(value)
    if key in _FLOAT_LISTS and isinstance(value, list):
        return [float(each) for each in value]
    if key == "time_step_limit" and isinstance(value, list):
        return [ENDLESS if isinstance(each, dict) else float(each) for each in value]
    return int(value) if key in _WHOLE and isinstance(value, float) and value.is_integer() else value


def _rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_config(config)
    if config["model_type"] in _SCALED and not (config.get("rope_scaling") or config.get("rope_parameters")):
        raise ExportError(
            f"config.json gives no rope_scaling, without which {config['model_type']} is not known: fetch it again."
        )
    _check_factors(config, rope.full)
    _check_share(config, rope.full)
    rotary: dict[str, Any] = {"rope_parameters": rope.parameters}
    if config["model_type"] == "phi3" and rope.switch is not None:
        rotary["original_max_position_embeddings"] = rope.switch  # which its class prefers to that of rope_parameters
    return rotary


def _head_size(config: Mapping[str, Any]) -> int:
    """0 where config.json leaves it to the class."""
    given = config.get("qk_rope_head_dim") or config.get("head_dim")
    return int(given or config.get("hidden_size", 0) // config.get("num_attention_heads", 1))


def _check_share(config: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    share, size = rope.get("partial_rotary_factor", 1), _head_size(config)
    if size and int(size * share) < 2:
        raise ExportError(
            f"config.json gives partial_rotary_factor as {share}, by which nothing of a head of {size} values rotates: "
            "correct it."
        )


def _check_heads(config: Mapping[str, Any]) -> None:
    width, num_heads = config.get("hidden_size"), config.get("num_attention_heads")
    if width and num_heads and width < num_heads and not config.get("head_dim"):
        raise ExportError(
            f"config.json gives {num_heads} attention heads of a hidden_size of {width}, which leaves them no values: "
            "correct num_attention_heads or hidden_size."
        )


def _check_factors(config: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    """LongRoPE has a factor for each pair of values that rotate."""
    width = _head_size(config)
    num_pairs = (int(width * rope.get("partial_rotary_factor", 1)) + 1) // 2
    for name in ("short_factor", "long_factor"):
        factors = rope.get(name)
        if factors is not None and width and len(factors) != num_pairs:
            raise ExportError(
                f"config.json gives {len(factors)} values of {name}, of which there are {num_pairs}: correct it."
            )


def _set_experts(args: dict[str, Any], model_type: str) -> None:
    if model_type == "gemma4_text":
        _set_gemma4_experts(args)
    elif "num_experts" in READ[model_type]:
        _set_num_experts(args)
    elif "moe_num_experts" in READ[model_type]:
        _check_num_chosen(args.get("moe_k", 1), args.get("moe_num_experts", MAX_EXPERTS))
    elif args.get("num_local_experts"):
        _check_num_chosen(args.get("num_experts_per_tok", 1), args["num_local_experts"])


def _check_all_experts(args: Mapping[str, Any]) -> None:
    num_layers = args.get("num_hidden_layers") or len(args.get("layer_types") or ())
    num_experts = max(args.get(key) or 0 for key in _EXPERTS)
    if num_layers * num_experts > MAX_ALL_EXPERTS:
        raise ExportError(
            f"config.json gives {num_experts} experts in each of {num_layers} layers, and {MAX_ALL_EXPERTS} are the "
            "most in all: fetch the model again."
        )


def _set_num_experts(args: dict[str, Any]) -> None:
    """transformers 5 writes num_local_experts where makers have num_experts."""
    named = {key: args.pop(key) for key in ("num_experts", "num_local_experts") if key in args}
    if len(set(named.values())) > 1:
        raise ExportError(f"config.json gives other numbers of experts as {' and '.join(named)}: remove one of them.")
    num_experts = next(iter(named.values()), None)
    if num_experts is not None:
        args["num_experts"] = num_experts
        _check_num_chosen(args.get("num_experts_per_tok", 1), num_experts)


def _set_gemma4_experts(args: dict[str, Any]) -> None:
    """Sizes of experts, which count where there are any."""
    sizes = {key: args.pop(key, None) for key in ("num_experts", "top_k_experts", "moe_intermediate_size")}
    if not args.get("enable_moe_block"):
        return
    absent = [key for key, size in sizes.items() if not size]
    if absent:
        raise ExportError(f"config.json sets enable_moe_block, but not {' and '.join(absent)}: fetch it again.")
    _check_num_chosen(sizes["top_k_experts"], sizes["num_experts"])
    args |= sizes


def _set_latent(args: dict[str, Any], model_type: str) -> None:
    """Of attention to latents: as many heads of keys as of queries, and layers whose first ones have no experts."""
    if args.get("num_attention_heads") is not None:
        args["num_key_value_heads"] = args["num_attention_heads"]
    if "n_routed_experts" not in READ[model_type]:
        return
    num_experts, num_chosen = args.get("n_routed_experts"), args.get("num_experts_per_tok")
    if num_experts is None or num_chosen is None:
        raise ExportError("config.json gives no n_routed_experts, or no num_experts_per_tok: fetch the model again.")
    _check_num_chosen(num_chosen, num_experts)
    _check_groups(args, num_experts, num_chosen)
    if model_type == "glm4_moe_lite":
        _set_mlp_layers(args)


def _check_groups(args: Mapping[str, Any], num_experts: int, num_chosen: int) -> None:
    """Experts are chosen of the best groups, which are known by two of each."""
    num_groups, num_kept = args.get("n_group") or 1, args.get("topk_group") or 1
    size = num_experts // num_groups
    is_even = num_groups * size == num_experts and size >= min(2, num_experts)
    if not is_even or not num_chosen <= num_kept * size <= num_experts:
        raise ExportError(
            f"config.json gives {num_groups} groups of {num_experts} experts, of which {num_kept} hold the "
            f"{num_chosen} of a token: correct n_group or topk_group."
        )


def _set_mlp_layers(args: dict[str, Any]) -> None:
    """How many layers have no experts, as makers say it."""
    num_dense, num_layers = args.pop("first_k_dense_replace", None), args.get("num_hidden_layers")
    kinds = args.get("mlp_layer_types")
    if kinds is not None and num_layers is not None and len(kinds) != num_layers:
        raise ExportError(f"config.json has {len(kinds)} mlp_layer_types for {num_layers} layers: correct it.")
    if num_dense is None or num_layers is None:
        return
    counted = ["dense" if layer < num_dense else "sparse" for layer in range(num_layers)]
    if (kinds or counted) != counted:
        raise ExportError(
            f"config.json gives first_k_dense_replace as {num_dense}, and other mlp_layer_types: remove one of them."
        )
    args["mlp_layer_types"] = counted


def _check_num_chosen(num_chosen: int, num_experts: int) -> None:
    if not 1 <= num_chosen <= num_experts:
        raise ExportError(f"config.json sends each token to {num_chosen} of {num_experts} experts: correct it.")


def _without_aliases(args: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for key, value in args.items():
        name = _ALIASES.get(key, key)
        if named.setdefault(name, value) != value:
            raise ExportError(f"config.json gives {name} twice, as {named[name]} and {value}: remove one of them.")
    return named


def _set_gemma_activation(args: dict[str, Any], model_type: str) -> None:
    """`hidden_activation` overrules the older `hidden_act`; each class reads one of them."""
    older, newer = args.pop("hidden_act", None), args.pop("hidden_activation", None)
    if model_type == "gemma":
        activation = newer or older
        # Early configs of the makers say "gelu" and mean the approximation, as the class has it too.
        args |= {"hidden_act": "gelu_pytorch_tanh" if activation == "gelu" else activation} if activation else {}
    elif newer:
        args["hidden_activation"] = newer
    elif older not in (None, "gelu_pytorch_tanh"):
        raise ExportError(
            f"config.json gives hidden_act as {older!r}, which a {model_type} model does not read: give "
            "hidden_activation."
        )
