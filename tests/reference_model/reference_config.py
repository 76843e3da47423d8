"""What config.json says of a model, read without transformers' classes: sizes, windows, positions, states, experts."""

import math
from collections.abc import Mapping
from typing import Any

from tests.reference_model.layers import Rotary, query_scale_of, rotary_of

GEMMA = ("gemma", "gemma2", "gemma3_text")
COHERE = ("cohere", "cohere2")
GRANITE = ("granite", "granitemoehybrid")
PAIRED = (*COHERE, "ernie4_5", "ernie4_5_moe", "glm4")  # whose values of a head turn with their neighbours
_DENSE = {
    "qwen3_5_moe_text": "qwen3_5_text",
    "qwen3_next": "qwen3_5_text",
    "lfm2_moe": "lfm2",
}  # what a mixture is but for its experts
_WHOLE = "full_attention"
_WINDOWED = "sliding_attention"


class ReferenceConfig:
    """A model of a supported type. config: what config.json holds. defaults: what transformers supposes for keys."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._config = config
        self._defaults = defaults
        self._model_type = str(config["model_type"])
        self._type = _DENSE.get(self._model_type, self._model_type)
        self.num_layers = int(self._size("num_hidden_layers", "n_layer"))
        self._width = int(self._size("hidden_size", "n_embd"))
        self.num_heads = int(self._size("num_attention_heads", "n_head"))
        supposed = None if "num_key_value_heads" in config else defaults.get("num_key_value_heads")
        self.num_kv_heads = int(config.get("num_key_value_heads") or supposed or self.num_heads)
        own = defaults.get("head_dim") if "head_dim" not in config else config["head_dim"]
        self.head_dim = int(own or self._width // self.num_heads)

    @property
    def epsilon(self) -> float:
        """What norms add to the variance."""
        names = {
            "gpt2": "layer_norm_epsilon",
            "phi": "layer_norm_eps",
            **dict.fromkeys(COHERE, "layer_norm_eps"),
            "lfm2": "norm_eps",
            "starcoder2": "norm_epsilon",
        }
        return float(self._value(names.get(self._type, "rms_norm_eps")))

    def epsilon_of(self, name: str) -> float:
        """That of a norm, by its name."""
        return self.epsilon

    def layer_type(self, layer: int) -> str:
        """Whether a layer sees a window."""
        return _WHOLE if self.window(layer) is None else _WINDOWED

    def window(self, layer: int) -> int | None:
        """Tokens that a layer sees, its own included; None without a limit."""
        window = self._value("sliding_window")
        if self._type in ("mistral", "ministral3", "phi3", "starcoder2", "mixtral"):
            return window  # type: ignore[no-any-return]
        if self._type in ("qwen2", "qwen3", "qwen3_moe", "smollm3") and not self._value("use_sliding_window"):
            return None
        return window if self._is_windowed(layer) else None

    def num_kv_heads_of(self, layer: int) -> int:
        """Heads of keys and values of a layer with attention."""
        return self.num_kv_heads

    def head_dim_of(self, layer: int) -> int:
        """The size of a layer's heads."""
        return self.head_dim

    def keeps_latent(self, layer: int) -> bool:
        """Whether its values are its keys."""
        return False

    def shares(self, layer: int) -> int | None:
        """The layer whose keys and values a layer attends to in place of its own."""
        return None

    def rotary(self, layer_type: str) -> Rotary | None:
        """What layers of a type rotate by; None where positions are learned."""
        if self._type == "gpt2":
            return None
        return rotary_of(self._config, self._defaults, self.head_dim, layer_type)

    def scale(self, layer: int) -> float:
        """What the products of queries and keys are multiplied by."""
        if self._type in GRANITE:
            return float(self._value("attention_multiplier"))
        if self._type in ("gemma2", "gemma3_text"):
            return 1 / math.sqrt(self._value("query_pre_attn_scalar"))
        if self._type != "gpt2":
            return 1 / math.sqrt(self.head_dim)
        scale = 1 / math.sqrt(self.head_dim) if self._value("scale_attn_weights") else 1.0
        return scale / (layer + 1) if self._value("scale_attn_by_inverse_layer_idx") else scale

    @property
    def query_scale(self) -> tuple[float, int] | None:
        """How queries grow with their position, see `query_scale_of`."""
        return query_scale_of(self._config)

    @property
    def softcap(self) -> float:
        """What attention scores are capped at; 0 without."""
        return float(self._value("attn_logit_softcapping") or 0)

    def has_experts(self, layer: int) -> bool:
        """Whether a layer sends each token to a few of many MLPs."""
        if self._model_type in ("qwen3_moe", "qwen3_next"):
            is_dense = layer in (self._config.get("mlp_only_layers") or [])
            return not is_dense and self._num_experts > 0 and (layer + 1) % self._value("decoder_sparse_step") == 0
        if self._model_type == "lfm2_moe":
            return bool(layer >= self._value("num_dense_layers"))
        if self._model_type == "granitemoehybrid":
            return bool(self._value("num_local_experts") > 0)
        if self._model_type == "ernie4_5_moe":
            last = self._value("moe_layer_end_index")
            is_within = self._value("moe_layer_start_index") <= layer <= (self.num_layers if last == -1 else last)
            return bool(is_within and (layer + 1) % self._value("moe_layer_interval") == 0)
        return self._model_type in ("gpt_oss", "qwen3_5_moe_text", "phimoe", "mixtral")

    @property
    def _num_experts(self) -> int:
        names = [key for key in ("num_experts", "num_local_experts") if key in self._config]
        return int(self._value(names[0] if names else "num_experts"))

    def has_positions(self, layer: int) -> bool:
        """Whether a layer rotates queries and keys, or the model has learned positions."""
        if self._type == "exaone4":  # whose layers without a window have none, where others have one
            return self._value("sliding_window") is None or self._is_windowed(layer)
        if self._type == "cohere2":
            return self._is_windowed(layer)
        if self._type == "granitemoehybrid":
            return bool(self._value("position_embedding_type") == "rope")
        if self._type != "smollm3":
            return True
        rotated = self._value("no_rope_layers")
        return bool(rotated[layer]) if rotated else (layer + 1) % self._value("no_rope_layer_interval") != 0

    def _is_windowed(self, layer: int) -> bool:
        layer_types = self._config.get("layer_types")
        if layer_types:
            return bool(layer_types[layer] == _WINDOWED)
        if self._type == "qwen3_moe":
            return True
        if self._type in ("qwen2", "qwen3"):
            return bool(layer >= self._value("max_window_layers"))
        if self._type in ("gemma2", "gpt_oss"):
            return layer % 2 == 0
        if self._type == "olmo3":
            return (layer + 1) % 4 != 0
        if self._type == "exaone4":
            pattern = self._value("sliding_window_pattern") or 4
            return pattern[layer % len(pattern)] == "L" if isinstance(pattern, str) else (layer + 1) % pattern != 0
        if self._type == "cohere2":
            return bool(
                (layer + 1) % (self._config.get("sliding_window_pattern") or self._config.get("layer_switch") or 4)
            )
        if self._type == "gemma3_text":
            pattern = self._config.get("sliding_window_pattern") or self._config.get("_sliding_window_pattern") or 6
            return bool((layer + 1) % pattern)
        return self._type == "smollm3" and not self.has_positions(layer)

    def attends(self, layer: int) -> bool:
        """Whether a layer attends to earlier tokens."""
        return self.states(layer) is None

    def states(self, layer: int) -> dict[str, tuple[int, ...]] | None:
        """Sizes of what a recurrent layer keeps of a text, by kind; None of a layer with attention."""
        if self._type not in ("lfm2", "qwen3_5_text", "granitemoehybrid") or self._attends(layer):
            return None
        if self._type == "granitemoehybrid":
            return self._mamba_states(self._value("mamba_d_conv"))
        if self._type == "lfm2":
            return {"conv": (self._value("conv_L_cache") - 1, self._width)}
        num_keys, num_values, key_dim, value_dim = self._delta_sizes
        num_channels = 2 * num_keys * key_dim + num_values * value_dim
        num_before = self._value("linear_conv_kernel_dim") - 1
        return {"conv": (num_before, num_channels), "delta": (num_values, key_dim, value_dim)}

    def _mamba_states(self, num_taps: int) -> dict[str, tuple[int, ...]]:
        num_heads, head_dim, num_groups, state_dim = self._mamba_sizes
        num_channels = num_heads * head_dim + 2 * num_groups * state_dim
        return {"conv": (num_taps - 1, num_channels), "mamba": (num_heads, state_dim, head_dim)}

    @property
    def _mamba_sizes(self) -> tuple[int, int, int, int]:
        """Heads and their size, groups and the size of what they share."""
        num_heads, num_groups = int(self._value("mamba_n_heads")), int(self._value("mamba_n_groups"))
        head_dim = int(self._value("mamba_expand") * self._width // num_heads)
        return num_heads, head_dim, num_groups, int(self._value("mamba_d_state"))

    @property
    def _delta_sizes(self) -> tuple[int, int, int, int]:
        """Heads of keys and of values, and the size of each."""
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        num_keys, num_values, key_dim, value_dim = (int(self._value(f"linear_{name}")) for name in names)
        return num_keys, num_values, key_dim, value_dim

    def _attends(self, layer: int) -> bool:
        attending = self._config.get("full_attn_idxs")  # LFM2's older way to say it
        if attending is not None:
            return layer in attending
        layer_types = self._config.get("layer_types") or self._config.get("layers_block_type")
        if self._type == "granitemoehybrid":
            return layer_types is not None and layer_types[layer] in (_WHOLE, "attention")
        if layer_types is None and self._type == "qwen3_5_text":
            return bool((layer + 1) % self._config.get("full_attention_interval", 4) == 0)
        return layer_types is None or layer_types[layer] in (_WHOLE, _WINDOWED)

    def _activation_name(self) -> str:
        if self._type == "lfm2":
            return "silu"
        newer = self._config.get("hidden_activation") if self._type in GEMMA else None
        if self._type in ("gemma2", "gemma3_text"):
            return str(newer or self._defaults["hidden_activation"])
        name = str(newer or self._value("activation_function" if self._type == "gpt2" else "hidden_act"))
        return "gelu_pytorch_tanh" if (self._type, name) == ("gemma", "gelu") else name

    def _value(self, key: str) -> Any:
        return self._config[key] if key in self._config else self._defaults.get(key)

    def _size(self, name: str, other: str) -> Any:
        return next(self._config[key] for key in (name, other) if key in self._config)
