"""A second reading of a folder's config.json: the model computed from its own keys, without transformers' classes.

A package is checked against the module that transformers builds. A key that was read wrongly on the way there would be
wrong in both. Here the file's keys are read once more, by other code, and the module is compared with that.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reader_edge_export.sources.second_mixture import best, mixed
from reader_edge_export.sources.second_recurrence import convolved, gated_delta, mamba2, unit
from reader_edge_export.sources.second_rotary import Rotary, query_scale_of, rotary_of

_GEMMA = ("gemma", "gemma2", "gemma3_text")
_OLMO = ("olmo2", "olmo3")
_GRANITE = ("granite", "granitemoehybrid")
_NORMED_AFTER = (*_OLMO, "exaone4")  # attention and MLP, not what they read
_DENSE = {"qwen3_5_moe_text": "qwen3_5_text", "lfm2_moe": "lfm2"}  # what a mixture is but for its experts
_WHOLE = "full_attention"
_WINDOWED = "sliding_attention"


class Tensors(ABC):
    """The weights of a module by the names of its parameters, those that are tied by the first of theirs alone."""

    @abstractmethod
    def __getitem__(self, name: str) -> Tensor: ...

    @abstractmethod
    def __contains__(self, name: str) -> bool: ...

    @abstractmethod
    def rows(self, name: str, indices: Tensor) -> Tensor:
        """Some rows of a matrix, which need not be read whole."""

    def get(self, name: str) -> Tensor | None:
        return self[name] if name in self else None  # noqa: SIM401 (no mapping)


class HeldTensors(Tensors):
    """Those of a mapping."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def rows(self, name: str, indices: Tensor) -> Tensor:
        return self._tensors[name][indices]


class SecondReading:
    """A model of a supported type. config: what config.json holds. defaults: what transformers supposes for keys.

    weights: the module's own; those of experts are indexed by the expert before anything else.
    """

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], weights: Tensors) -> None:
        self._config = config
        self._defaults = defaults
        self._weights = weights
        self._model_type = str(config["model_type"])
        self._type = _DENSE.get(self._model_type, self._model_type)
        self.num_layers = int(self._size("num_hidden_layers", "n_layer"))
        self._width = int(self._size("hidden_size", "n_embd"))
        self.num_heads = int(self._size("num_attention_heads", "n_head"))
        self.num_kv_heads = int(config.get("num_key_value_heads") or self._supposed("num_key_value_heads"))
        own = defaults.get("head_dim") if "head_dim" not in config else config["head_dim"]
        self.head_dim = int(own or self._width // self.num_heads)

    @property
    def epsilon(self) -> float:
        """What norms add to the variance."""
        names = {"gpt2": "layer_norm_epsilon", "phi": "layer_norm_eps", "lfm2": "norm_eps"}
        return float(self._value(names.get(self._type, "rms_norm_eps")))

    def activation(self, values: Tensor) -> Tensor:
        """What the MLP bends its values with."""
        name = self._activation_name()
        if name in ("silu", "swish"):
            return values / (1 + torch.exp(-values))
        if name == "relu":
            return values.clamp(min=0)
        if name == "gelu":
            return values * 0.5 * (1 + torch.erf(values / math.sqrt(2)))
        return values * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)))

    def layer_type(self, layer: int) -> str:
        """Whether a layer sees a window."""
        return _WHOLE if self.window(layer) is None else _WINDOWED

    def window(self, layer: int) -> int | None:
        """Tokens that a layer sees, its own included; None without a limit."""
        window = self._value("sliding_window")
        if self._type in ("mistral", "ministral3", "phi3"):
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
        if self._type in _GRANITE:
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

    def logits(self, token_ids: Sequence[int], num_layers: int | None = None) -> Tensor:
        """Logits (N, V) after each of N tokens, float32. num_layers: of the first layers alone; None for all."""
        with torch.no_grad():
            hidden = self._embedded(torch.tensor(token_ids))
            for layer in range(self.num_layers if num_layers is None else num_layers):
                hidden = self._after_layer(layer, hidden)
            names = {"gpt2": "transformer.ln_f", "phi": "model.final_layernorm", "lfm2": "model.embedding_norm"}
            return self._head(self._norm(names.get(self._type, "model.norm"), hidden))

    def _embedded(self, token_ids: Tensor) -> Tensor:
        if self._type == "gpt2":
            positions = self._weights["transformer.wpe.weight"][: len(token_ids)]
            return self._weights.rows("transformer.wte.weight", token_ids) + positions
        embedded = self._weights.rows("model.embed_tokens.weight", token_ids)
        factor = self._width**0.5 if self._type in _GEMMA else self._value("embedding_multiplier")
        return embedded * (factor if factor is not None else 1.0)

    def _head(self, hidden: Tensor) -> Tensor:
        embedding = "transformer.wte" if self._type == "gpt2" else "model.embed_tokens"
        says_tied = self._config.get("tie_embedding", self._value("tie_word_embeddings"))
        is_tied = says_tied and "lm_head.weight" not in self._weights
        logits = self._linear(embedding if is_tied else "lm_head", hidden, bias="lm_head")
        logits = logits / (self._value("logits_scaling") or 1.0)
        cap = self._value("final_logit_softcapping")
        return cap * torch.tanh(logits / cap) if cap else logits

    def _after_layer(self, layer: int, x: Tensor) -> Tensor:
        if self._type == "gpt2":
            name = f"transformer.h.{layer}"
            x = x + self._attention(layer, f"{name}.attn", self._norm(f"{name}.ln_1", x))
            return x + self._mlp(f"{name}.mlp", self._norm(f"{name}.ln_2", x))
        name = f"model.layers.{layer}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        if self._type == "phi":
            normed = self._norm(f"{name}.input_layernorm", x)
            return x + self._attention(layer, attention, normed) + self._mlp(mlp, normed)
        if self._type == "lfm2":
            normed = self._norm(f"{name}.operator_norm", x)
            is_conv = self.states(layer) is not None
            x = x + (self._short_conv(f"{name}.conv", normed) if is_conv else self._attention(layer, attention, normed))
            return x + self._bent(layer, f"{name}.feed_forward", self._norm(f"{name}.ffn_norm", x))
        if self._type in _NORMED_AFTER:
            x = x + self._norm(f"{name}.post_attention_layernorm", self._attention(layer, attention, x))
            return x + self._norm(f"{name}.post_feedforward_layernorm", self._mlp(mlp, x))
        normed = self._norm(f"{name}.input_layernorm", x)
        if self.states(layer) is not None:
            is_mamba = self._type == "granitemoehybrid"
            mixer = self._mamba if is_mamba else self._gated_delta
            attended = mixer(f"{name}.{'mamba' if is_mamba else 'linear_attn'}", normed)
        else:
            attended = self._attention(layer, attention, normed)
        if self._type in ("gemma2", "gemma3_text"):
            x = x + self._norm(f"{name}.post_attention_layernorm", attended)
            bent = self._mlp(mlp, self._norm(f"{name}.pre_feedforward_layernorm", x))
            return x + self._norm(f"{name}.post_feedforward_layernorm", bent)
        factor = self._value("residual_multiplier") if self._type in _GRANITE else 1.0
        if self._type == "granitemoehybrid":
            mlp = f"{name}.{'block_sparse_moe' if self.has_experts(layer) else 'shared_mlp'}"
        x = x + factor * attended
        bent = self._bent(layer, mlp, self._norm(f"{name}.post_attention_layernorm", x))
        if self._type == "granitemoehybrid" and self.has_experts(layer):
            bent = bent + self._mlp(f"{name}.shared_mlp", self._norm(f"{name}.post_attention_layernorm", x))
        return x + factor * bent

    def _attention(self, layer: int, name: str, x: Tensor) -> Tensor:
        queries, keys, values = (self._by_head(part) for part in self._projected(name, x))
        queries, keys = self._head_norm(f"{name}.q", queries), self._head_norm(f"{name}.k", keys)
        rotary = self.rotary(self.layer_type(layer)) if self.has_positions(layer) else None
        if rotary is not None:
            queries, keys = rotated(queries, rotary), rotated(keys, rotary)
        if self.query_scale is not None:
            beta, step = self.query_scale
            growth = 1 + beta * torch.log(1 + torch.arange(len(x)) // step)
            queries = queries * growth[:, None]
        group = self.num_heads // self.num_kv_heads
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        scores = queries @ keys.transpose(1, 2) * self.scale(layer)
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        distances = torch.arange(len(x))[:, None] - torch.arange(len(x))
        is_hidden = (distances < 0) | (distances >= (self.window(layer) or math.inf))
        mixed = self._shares(name, scores.masked_fill(is_hidden, -math.inf)) @ values
        out = {"gpt2": "c_proj", "phi": "dense", "lfm2": "out_proj"}.get(self._type, "o_proj")
        gathered = mixed.transpose(0, 1).flatten(1)
        if self._type == "qwen3_5_text":
            gates = self._linear(f"{name}.q_proj", x).view(len(x), -1, 2, self.head_dim)[:, :, 1]
            gathered = gathered * torch.sigmoid(gates.flatten(1))
        return self._linear(f"{name}.{out}", gathered)

    def _shares(self, name: str, scores: Tensor) -> Tensor:
        """Scores (H, N, M) as shares of one, of which gpt-oss has a sink of each head take a part."""
        if self._type != "gpt_oss":
            return torch.softmax(scores, -1)
        powers = torch.exp(scores - scores.amax(-1, keepdim=True))
        sink = torch.exp(self._weights[f"{name}.sinks"][:, None, None] - scores.amax(-1, keepdim=True))
        return powers / (powers.sum(-1, keepdim=True) + sink)

    def _short_conv(self, name: str, x: Tensor) -> Tensor:
        """LFM2's: a convolution between two gates."""
        before, behind, values = self._linear(f"{name}.in_proj", x).chunk(3, -1)
        weight, bias = self._weights[f"{name}.conv.weight"], self._weights.get(f"{name}.conv.bias")
        return self._linear(f"{name}.out_proj", behind * convolved(before * values, weight, bias))

    def _gated_delta(self, name: str, x: Tensor) -> Tensor:
        """Qwen 3.5's: a convolution, the gated delta rule by head, a norm of each head, a gate."""
        num_keys, num_values, key_dim, value_dim = self._delta_sizes
        mixed = convolved(self._linear(f"{name}.in_proj_qkv", x), self._weights[f"{name}.conv1d.weight"], None)
        queries, keys, values = self.activation(mixed).split([num_keys * key_dim] * 2 + [num_values * value_dim], -1)
        queries, keys = (unit(part.view(len(x), num_keys, key_dim)) for part in (queries, keys))
        steps = self._linear(f"{name}.in_proj_a", x) + self._weights[f"{name}.dt_bias"]
        log_decays = -torch.exp(self._weights[f"{name}.A_log"]) * torch.log1p(torch.exp(steps))
        betas = torch.sigmoid(self._linear(f"{name}.in_proj_b", x))
        values = values.view(len(x), num_values, value_dim)
        read = self._norm(f"{name}.norm", gated_delta(queries / key_dim**0.5, keys, values, log_decays, betas))
        gates = self._linear(f"{name}.in_proj_z", x).view(len(x), num_values, value_dim)
        return self._linear(f"{name}.out_proj", (read * gates * torch.sigmoid(gates)).flatten(1))

    def _mamba(self, name: str, x: Tensor) -> Tensor:
        """Granite 4's: a convolution, Mamba2's recurrence by head, a gate, a norm of each group."""
        num_heads, head_dim, num_groups, state_dim = self._mamba_sizes
        width, shared = num_heads * head_dim, num_groups * state_dim
        gates, mixed, steps = self._linear(f"{name}.in_proj", x).split([width, width + 2 * shared, num_heads], -1)
        bias = self._weights.get(f"{name}.conv1d.bias")
        mixed = self.activation(convolved(mixed, self._weights[f"{name}.conv1d.weight"], bias))
        values, written, read = mixed.split([width, shared, shared], -1)
        steps = torch.log1p(torch.exp(steps + self._weights[f"{name}.dt_bias"]))
        least, most = self._value("time_step_limit") or (0.0, math.inf)
        most = math.inf if isinstance(most, dict) else most  # transformers 5 writes {"__float__": "Infinity"}
        values = values.view(len(x), num_heads, head_dim)
        written, read = (part.view(len(x), num_groups, state_dim) for part in (written, read))
        rates, direct = -torch.exp(self._weights[f"{name}.A_log"]), self._weights[f"{name}.D"]
        mixed = mamba2(values, steps.clamp(least, most), rates, written, read) + direct[:, None] * values
        gated = (mixed.flatten(1) * self.activation(gates)).view(len(x), num_groups, -1)
        gated = gated / torch.sqrt((gated * gated).mean(-1, keepdim=True) + self.epsilon)
        return self._linear(f"{name}.out_proj", gated.flatten(1) * self._weights[f"{name}.norm.weight"])

    def _projected(self, name: str, x: Tensor) -> Any:
        """Queries, keys and values (N, H * D)."""
        if self._type in ("phi3", "gpt2"):
            sizes = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
            fused = self._linear(f"{name}.{'qkv_proj' if self._type == 'phi3' else 'c_attn'}", x)
            return fused.split([size * self.head_dim for size in sizes], -1)
        queries, keys, values = (self._linear(f"{name}.{part}_proj", x) for part in "qkv")
        if self._type == "qwen3_5_text":  # each head's query, then its gate
            queries = queries.view(len(x), -1, 2, self.head_dim)[:, :, 0].flatten(1)
        if self._type in _OLMO:  # whose norms are over all heads
            queries, keys = self._norm(f"{name}.q_norm", queries), self._norm(f"{name}.k_norm", keys)
        return queries, keys, values

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self.head_dim).transpose(0, 1)

    def _head_norm(self, name: str, x: Tensor) -> Tensor:
        if self._type in ("qwen3", "qwen3_moe", "qwen3_5_text", "gemma3_text", "exaone4"):
            return self._norm(f"{name}_norm", x)
        is_normed = self._type == "lfm2" or self._value("qk_layernorm")
        return self._norm(f"{name}_layernorm", x) if is_normed else x

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        plain = {"gpt2": ("c_fc", "c_proj"), "phi": ("fc1", "fc2")}
        if self._type in plain:
            first, second = plain[self._type]
            return self._linear(f"{name}.{second}", self.activation(self._linear(f"{name}.{first}", x)))
        fused = {"phi3": ("gate_up_proj", "down_proj"), "granitemoehybrid": ("input_linear", "output_linear")}
        if self._type in fused:
            first, second = fused[self._type]
            gate, up = self._linear(f"{name}.{first}", x).chunk(2, -1)
            return self._linear(f"{name}.{second}", self.activation(gate) * up)
        names = ("w1", "w3", "w2") if self._type == "lfm2" else ("gate_proj", "up_proj", "down_proj")
        gate, up = (self._linear(f"{name}.{part}", x) for part in names[:2])
        return self._linear(f"{name}.{names[2]}", self.activation(gate) * up)

    def has_experts(self, layer: int) -> bool:
        """Whether a layer sends each token to a few of many MLPs."""
        if self._model_type == "qwen3_moe":
            is_dense = layer in (self._config.get("mlp_only_layers") or [])
            return not is_dense and self._num_experts > 0 and (layer + 1) % self._value("decoder_sparse_step") == 0
        if self._model_type == "lfm2_moe":
            return bool(layer >= self._value("num_dense_layers"))
        if self._model_type == "granitemoehybrid":
            return bool(self._value("num_local_experts") > 0)
        return self._model_type in ("gpt_oss", "qwen3_5_moe_text")

    @property
    def _num_experts(self) -> int:
        names = [key for key in ("num_experts", "num_local_experts") if key in self._config]
        return int(self._value(names[0] if names else "num_experts"))

    def _bent(self, layer: int, name: str, x: Tensor) -> Tensor:
        """What a layer's MLP, or its experts, make of rows."""
        if not self.has_experts(layer):
            return self._mlp(name, x)
        router = {"gpt_oss": "router", "granitemoehybrid": "router"}.get(self._model_type, "gate")
        shares, chosen = self._routed(name, self._linear(f"{name}.{router}", x))
        bend = self._clamped if self._model_type == "gpt_oss" else self._gated
        bent = mixed(x, chosen, shares, lambda expert, rows: bend(f"{name}.experts", expert, rows))
        if self._model_type != "qwen3_5_moe_text":
            return bent
        gates = torch.sigmoid(self._linear(f"{name}.shared_expert_gate", x))
        return bent + gates * self._mlp(f"{name}.shared_expert", x)

    def _routed(self, name: str, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (N, X) of a router -> the shares of the experts chosen, and these: (N, k)."""
        num_chosen = self._value("num_experts_per_tok")
        if self._model_type in ("gpt_oss", "granitemoehybrid"):
            shares, chosen = best(scores, num_chosen)
            return torch.softmax(shares, -1), chosen
        if self._model_type == "lfm2_moe":
            likely = torch.sigmoid(scores)
            lifted = likely + self._weights[f"{name}.expert_bias"] if self._value("use_expert_bias") else likely
            _, chosen = best(lifted, num_chosen)
            shares = likely.gather(-1, chosen)
            total = shares.sum(-1, keepdim=True) + 1e-6 if self._value("norm_topk_prob") else 1.0
            return shares / total * self._value("routed_scaling_factor"), chosen
        shares, chosen = best(torch.softmax(scores, -1), num_chosen)
        if self._model_type == "qwen3_5_moe_text" or self._value("norm_topk_prob"):
            shares = shares / shares.sum(-1, keepdim=True)
        return shares, chosen

    def _gated(self, name: str, expert: int, x: Tensor) -> Tensor:
        gate, up = (x @ self._weights[f"{name}.gate_up_proj"][expert].T).chunk(2, -1)
        return (self.activation(gate) * up) @ self._weights[f"{name}.down_proj"][expert].T

    def _clamped(self, name: str, expert: int, x: Tensor) -> Tensor:
        """What an expert of gpt-oss makes of rows: gate and up are neighbours, and clamped."""
        weights, biases = (
            [self._weights[f"{name}.{part}_proj{end}"][expert] for part in ("gate_up", "down")] for end in ("", "_bias")
        )
        before = x @ weights[0] + biases[0]
        limit, alpha = self._value("swiglu_limit"), self._value("swiglu_alpha")
        gate, up = before.unflatten(-1, (-1, 2)).unbind(-1)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        bent: Tensor = (up + 1) * gate / (1 + torch.exp(-alpha * gate))
        return bent @ weights[1] + biases[1]

    def _linear(self, name: str, x: Tensor, bias: str | None = None) -> Tensor:
        weight = self._weights[f"{name}.weight"]
        is_turned = self._type == "gpt2" and ".h." in name
        product = x @ (weight if is_turned else weight.T)
        added = self._weights.get(f"{bias or name}.bias")
        return product if added is None else product + added

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias")
        if self._type in ("gpt2", "phi"):
            x = x - x.mean(-1, keepdim=True)
        normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.epsilon)
        is_centred = self._type in _GEMMA or (self._type == "qwen3_5_text" and not name.endswith("linear_attn.norm"))
        normed = normed * (1 + weight if is_centred else weight)
        return normed if bias is None else normed + bias

    def has_positions(self, layer: int) -> bool:
        """Whether a layer rotates queries and keys, or the model has learned positions."""
        if self._type == "exaone4":  # whose layers without a window have none, where others have one
            return self._value("sliding_window") is None or self._is_windowed(layer)
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
        if self._type == "gemma3_text":
            pattern = self._config.get("sliding_window_pattern") or self._config.get("_sliding_window_pattern") or 6
            return bool((layer + 1) % pattern)
        return self._type == "smollm3" and not self.has_positions(layer)

    def states(self, layer: int) -> dict[str, tuple[int, ...]] | None:
        """Sizes of what a recurrent layer keeps of a text, by kind; None of a layer with attention."""
        if self._type not in ("lfm2", "qwen3_5_text", "granitemoehybrid") or self._attends(layer):
            return None
        if self._type == "granitemoehybrid":
            num_heads, head_dim, num_groups, state_dim = self._mamba_sizes
            num_channels = num_heads * head_dim + 2 * num_groups * state_dim
            num_before = self._value("mamba_d_conv") - 1
            return {"conv": (num_before, num_channels), "mamba": (num_heads, state_dim, head_dim)}
        if self._type == "lfm2":
            return {"conv": (self._value("conv_L_cache") - 1, self._width)}
        num_keys, num_values, key_dim, value_dim = self._delta_sizes
        num_channels = 2 * num_keys * key_dim + num_values * value_dim
        num_before = self._value("linear_conv_kernel_dim") - 1
        return {"conv": (num_before, num_channels), "delta": (num_values, key_dim, value_dim)}

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
        newer = self._config.get("hidden_activation") if self._type in _GEMMA else None
        if self._type in ("gemma2", "gemma3_text"):
            return str(newer or self._defaults["hidden_activation"])
        name = str(newer or self._value("activation_function" if self._type == "gpt2" else "hidden_act"))
        return "gelu_pytorch_tanh" if (self._type, name) == ("gemma", "gelu") else name

    def _value(self, key: str) -> Any:
        return self._config[key] if key in self._config else self._defaults.get(key)

    def _size(self, name: str, other: str) -> Any:
        return next(self._config[key] for key in (name, other) if key in self._config)

    def _supposed(self, key: str) -> Any:
        return self.num_heads if key in self._config else self._defaults.get(key) or self.num_heads


def rotated(x: Tensor, rotary: Rotary) -> Tensor:
    """Heads (H, N, D), of which the first values turn by their positions, as two halves."""
    half = len(rotary.inverse_frequencies)
    angles = torch.arange(x.shape[1])[:, None] * torch.from_numpy(rotary.inverse_frequencies)
    cosines, sines = (turned(angles).float() * rotary.magnitude for turned in (torch.cos, torch.sin))
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines, rest), -1)
