"""A model computed from the keys of its folder's config.json, without transformers' classes.

A package is checked against the module that transformers builds. A key that was read wrongly on the way there would be
wrong in both. Here the file's keys are read by other code, and the module is compared with that.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reader_edge_export.sources.layered_model import best
from tests.reference_model.layers import Rotary, convolved, gated_delta, mamba2, mixed, unit
from tests.reference_model.reference_config import COHERE, GEMMA, GRANITE, PAIRED, ReferenceConfig

_OLMO = ("olmo2", "olmo3")
_NORMED_AFTER = (*_OLMO, "exaone4")  # attention and MLP, not what they read
_GEMMA_NORMS = ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_NORMED_ON_BOTH_SIDES = {  # what attention adds, what the MLP reads, what it adds
    **dict.fromkeys(("gemma2", "gemma3_text"), _GEMMA_NORMS),
    "glm4": ("post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
}


class ReferenceModel(ReferenceConfig):
    """Such a model, computed. weights: the module's own; those of experts are indexed by the expert before all else."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        super().__init__(config, defaults)
        self._weights = weights

    def activation_in(self, name: str, values: Tensor) -> Tensor:
        """What a module bends values with, by its name."""
        return self.activation(values)

    def activation(self, values: Tensor) -> Tensor:
        """What the MLP bends its values with."""
        name = self._activation_name()
        if name in ("silu", "swish"):
            return values / (1 + torch.exp(-values))
        if name == "relu":
            return values.clamp(min=0)
        if name == "relu2":
            return values.clamp(min=0) ** 2
        if name == "gelu":
            return values * 0.5 * (1 + torch.erf(values / math.sqrt(2)))
        return values * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)))

    def logits(self, token_ids: Sequence[int], num_layers: int | None = None) -> Tensor:
        """Logits (N, V) after each of N tokens, float32. num_layers: of the first layers alone; None for all."""
        with torch.no_grad():
            hidden = self._embedded(torch.tensor(token_ids))
            for layer in range(self.num_layers if num_layers is None else num_layers):
                hidden = self._after_layer(layer, hidden)
            names = {"gpt2": "transformer.ln_f", "lfm2": "model.embedding_norm"}
            names |= {**dict.fromkeys(("phi", "falcon_h1"), "model.final_layernorm"), "nemotron_h": "model.norm_f"}
            return self._head(self._norm(names.get(self._type, "model.norm"), self._merged(hidden)))

    def _merged(self, hidden: Tensor) -> Tensor:
        """Of what the last layer makes, (N, E), where it makes more."""
        return hidden

    def _embedded(self, token_ids: Tensor) -> Tensor:
        if self._type == "gpt2":
            positions = self._weights["transformer.wpe.weight"][: len(token_ids)]
            return self._weights["transformer.wte.weight"][token_ids] + positions
        embedded = self._weights["model.embed_tokens.weight"][token_ids]
        factor = self._width**0.5 if self._type in GEMMA else self._value("embedding_multiplier")
        return embedded * (factor if factor is not None else 1.0)

    def _head(self, hidden: Tensor) -> Tensor:
        embedding = "transformer.wte" if self._type == "gpt2" else "model.embed_tokens"
        says_tied = self._config.get("tie_embedding", self._value("tie_word_embeddings"))
        is_tied = says_tied and "lm_head.weight" not in self._weights
        logits = self._linear(embedding if is_tied else "lm_head", hidden, bias="lm_head")
        logits = logits / (self._value("logits_scaling") or 1.0)
        if self._type in COHERE:
            logits = logits * self._value("logit_scale")
        cap = self._value("final_logit_softcapping")
        return cap * torch.tanh(logits / cap) if cap else logits

    def _after_layer(self, layer: int, x: Tensor) -> Tensor:
        if self._type == "gpt2":
            name = f"transformer.h.{layer}"
            x = x + self._attention(layer, f"{name}.attn", self._norm(f"{name}.ln_1", x))
            return x + self._mlp(f"{name}.mlp", self._norm(f"{name}.ln_2", x))
        name = f"model.layers.{layer}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        if self._type in ("phi", *COHERE):
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
        before = "attention_layernorm" if self._type == "apertus" else "input_layernorm"
        normed = self._norm(f"{name}.{before}", x)
        if self.states(layer) is not None:
            is_mamba = self._type == "granitemoehybrid"
            mixer = self._mamba if is_mamba else self._gated_delta
            attended = mixer(f"{name}.{'mamba' if is_mamba else 'linear_attn'}", normed)
        else:
            attended = self._attention(layer, attention, normed)
        if self._type in _NORMED_ON_BOTH_SIDES:
            attention_norm, mlp_input_norm, mlp_norm = (f"{name}.{norm}" for norm in _NORMED_ON_BOTH_SIDES[self._type])
            x = x + self._norm(attention_norm, attended)
            return x + self._norm(mlp_norm, self._mlp(mlp, self._norm(mlp_input_norm, x)))
        factor = self._value("residual_multiplier") if self._type in GRANITE else 1.0
        if self._type == "granitemoehybrid":
            mlp = f"{name}.{'block_sparse_moe' if self.has_experts(layer) else 'shared_mlp'}"
        x = x + factor * attended
        between = "feedforward_layernorm" if self._type == "apertus" else "post_attention_layernorm"
        bent = self._bent(layer, mlp, self._norm(f"{name}.{between}", x))
        if self._type == "granitemoehybrid" and self.has_experts(layer):
            bent = bent + self._mlp(f"{name}.shared_mlp", self._norm(f"{name}.post_attention_layernorm", x))
        return x + factor * bent

    def _attention(self, layer: int, name: str, x: Tensor) -> Tensor:
        queries, keys, values = (
            part.view(len(part), -1, self.head_dim).transpose(0, 1) for part in self._projected(name, x)
        )
        queries, keys = self._head_norm(f"{name}.q", queries), self._head_norm(f"{name}.k", keys)
        rotary = self.rotary(self.layer_type(layer)) if self.has_positions(layer) else None
        if rotary is not None:
            turn = rotated_by_pairs if self._type in PAIRED else rotated
            queries, keys = turn(queries, rotary), turn(keys, rotary)
        if self._type == "hunyuan_v1_dense":
            queries, keys = self._norm(f"{name}.query_layernorm", queries), self._norm(f"{name}.key_layernorm", keys)
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
        projected, gates, betas, steps = self._delta_inputs(name, x)
        mixed = convolved(projected, self._weights[f"{name}.conv1d.weight"], None)
        queries, keys, values = self.activation(mixed).split([num_keys * key_dim] * 2 + [num_values * value_dim], -1)
        queries, keys = (unit(part.view(len(x), num_keys, key_dim)) for part in (queries, keys))
        steps = steps + self._weights[f"{name}.dt_bias"]
        log_decays = -torch.exp(self._weights[f"{name}.A_log"]) * torch.log1p(torch.exp(steps))
        betas = torch.sigmoid(betas)
        values = values.view(len(x), num_values, value_dim)
        read = self._norm(f"{name}.norm", gated_delta(queries / key_dim**0.5, keys, values, log_decays, betas))
        gates = gates.reshape(len(x), num_values, value_dim)
        return self._linear(f"{name}.out_proj", (read * gates * torch.sigmoid(gates)).flatten(1))

    def _delta_inputs(self, name: str, x: Tensor) -> tuple[Tensor, ...]:
        """What such a layer makes of rows: queries, keys and values side by side; gates; betas; steps."""
        if self._model_type != "qwen3_next":
            qkv, gates, betas, steps = (self._linear(f"{name}.in_proj_{part}", x) for part in ("qkv", "z", "b", "a"))
            return qkv, gates, betas, steps
        num_keys, num_values, key_dim, value_dim = self._delta_sizes  # its heads of keys have theirs side by side
        group = num_values // num_keys
        by_key = self._linear(f"{name}.in_proj_qkvz", x).view(len(x), num_keys, -1)
        parts = [part.flatten(1) for part in by_key.split([key_dim] * 2 + [group * value_dim] * 2, -1)]
        betas, steps = self._linear(f"{name}.in_proj_ba", x).view(len(x), num_keys, -1).split(group, -1)
        return torch.cat(parts[:3], -1), parts[3], betas.flatten(1), steps.flatten(1)

    def _mamba(self, name: str, x: Tensor) -> Tensor:
        """Granite 4's: a convolution, Mamba2's recurrence by head, a gate, a norm of each group."""
        gates, mixed = self._mamba2(name, self._linear(f"{name}.in_proj", x))
        gated = self._group_norm(mixed * gates * torch.sigmoid(gates))
        return self._linear(f"{name}.out_proj", gated * self._weights[f"{name}.norm.weight"])

    def _group_norm(self, x: Tensor) -> Tensor:
        """Each of the groups that share what is written and read, by itself."""
        groups = x.view(len(x), self._mamba_sizes[2], -1)
        return (groups / torch.sqrt((groups * groups).mean(-1, keepdim=True) + self.epsilon)).flatten(1)

    def _mamba2(self, name: str, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Gates, and what the recurrence makes of the other parts: (N, H * P)."""
        num_heads, head_dim, num_groups, state_dim = self._mamba_sizes
        width, shared = num_heads * head_dim, num_groups * state_dim
        gates, mixed, steps = projected.split([width, width + 2 * shared, num_heads], -1)
        bias = self._weights.get(f"{name}.conv1d.bias")
        mixed = self.activation_in(name, convolved(mixed, self._weights[f"{name}.conv1d.weight"], bias))
        values, written, read = mixed.split([width, shared, shared], -1)
        steps = torch.log1p(torch.exp(steps + self._weights[f"{name}.dt_bias"]))
        least, most = self._value("time_step_limit") or (0.0, math.inf)
        most = math.inf if isinstance(most, dict) else most  # transformers 5 writes {"__float__": "Infinity"}
        values = values.view(len(values), num_heads, head_dim)
        written, read = (part.view(len(part), num_groups, state_dim) for part in (written, read))
        rates, direct = -torch.exp(self._weights[f"{name}.A_log"]), self._weights[f"{name}.D"]
        mixed = mamba2(values, steps.clamp(least, most), rates, written, read) + direct[:, None] * values
        return gates, mixed.flatten(1)

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

    def _head_norm(self, name: str, x: Tensor) -> Tensor:
        if self._type in ("qwen3", "qwen3_moe", "qwen3_5_text", "gemma3_text", "exaone4", "apertus"):
            return self._norm(f"{name}_norm", x)
        is_normed = self._type == "lfm2" or self._value("qk_layernorm")
        return self._norm(f"{name}_layernorm", x) if is_normed else x

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        plain = {"gpt2": ("c_fc", "c_proj"), "phi": ("fc1", "fc2"), "arcee": ("up_proj", "down_proj")}
        plain["starcoder2"] = plain["gpt2"]
        if self._type == "apertus":
            return self._linear(f"{name}.down_proj", self._xielu(f"{name}.act_fn", self._linear(f"{name}.up_proj", x)))
        if self._type in plain:
            first, second = plain[self._type]
            return self._linear(f"{name}.{second}", self.activation(self._linear(f"{name}.{first}", x)))
        fused = dict.fromkeys(("phi3", "glm4"), ("gate_up_proj", "down_proj"))
        fused["granitemoehybrid"] = ("input_linear", "output_linear")
        if self._type in fused:
            first, second = fused[self._type]
            gate, up = self._linear(f"{name}.{first}", x).chunk(2, -1)
            return self._linear(f"{name}.{second}", self.activation(gate) * up)
        names = ("w1", "w3", "w2") if self._type == "lfm2" else ("gate_proj", "up_proj", "down_proj")
        gate, up = (self._linear(f"{name}.{part}", x) for part in names[:2])
        return self._linear(f"{name}.{names[2]}", self.activation(gate) * up)

    def _xielu(self, name: str, x: Tensor) -> Tensor:
        """arXiv 2411.13010, eq. 8: a parabola above nought, below it an integral of ELU."""
        above, below = (torch.log1p(torch.exp(self._weights[f"{name}.alpha_{side}"])) for side in "pn")
        slope, least = self._weights[f"{name}.beta"], self._weights[f"{name}.eps"]
        integral = (torch.expm1(torch.minimum(x, least)) - x) * (slope + below)
        return torch.where(x > 0, above * x * x, integral) + slope * x

    def _bent(self, layer: int, name: str, x: Tensor) -> Tensor:
        """What a layer's MLP, or its experts, make of rows."""
        if not self.has_experts(layer):
            return self._mlp(name, x)
        router = "router" if self._model_type in ("gpt_oss", "granitemoehybrid", "phimoe") else "gate"
        shares, chosen = self._routed(name, self._linear(f"{name}.{router}", x))
        bend = self._clamped if self._model_type == "gpt_oss" else self._gated
        bent = mixed(x, chosen, shares, lambda expert, rows: bend(f"{name}.experts", expert, rows))
        if self._model_type == "ernie4_5_moe" and self._value("moe_num_shared_experts"):
            return bent + self._mlp(f"{name}.shared_experts", x)
        if self._model_type not in ("qwen3_5_moe_text", "qwen3_next"):
            return bent
        gates = torch.sigmoid(self._linear(f"{name}.shared_expert_gate", x))
        return bent + gates * self._mlp(f"{name}.shared_expert", x)

    def _routed(self, name: str, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (N, X) of a router -> the shares of the experts chosen, and these: (N, k)."""
        if self._model_type == "phimoe":
            return self._sparsely_mixed(scores)
        num_chosen = self._value("moe_k" if self._model_type == "ernie4_5_moe" else "num_experts_per_tok")
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
        if self._model_type == "ernie4_5_moe":
            likely = torch.softmax(scores, -1)
            _, chosen = best(likely + self._weights[f"{name}.gate.moe_statics.e_score_correction_bias"], num_chosen)
            shares = likely.gather(-1, chosen)
            return shares / shares.sum(-1, keepdim=True).clamp(min=self._value("moe_norm_min")), chosen
        shares, chosen = best(torch.softmax(scores, -1), num_chosen)
        if self._model_type in ("qwen3_5_moe_text", "mixtral") or self._value("norm_topk_prob"):
            shares = shares / shares.sum(-1, keepdim=True)
        return shares, chosen

    def _sparsely_mixed(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """SparseMixer-v2 (arXiv 2409.12136): the best expert, then the next; each one's share is among those near it.

        Near is by a margin of two times the noise of training, as Microsoft's `modeling_phimoe.py` has it.
        """
        left, shares, chosen = scores.clone(), [], []
        for _ in range(2):
            largest, expert = left.max(-1, keepdim=True)
            is_far = (largest - scores) / scores.abs().maximum(largest) > 2 * self._value("router_jitter_noise")
            near = torch.exp(left - largest).masked_fill(is_far, 0)
            shares.append(1 / near.sum(-1, keepdim=True))
            chosen.append(expert)
            left = left.scatter(-1, expert, -math.inf)
        return torch.cat(shares, -1), torch.cat(chosen, -1)

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
        is_transposed = self._type == "gpt2" and ".h." in name
        product = x @ (weight if is_transposed else weight.T)
        added = self._weights.get(f"{bias or name}.bias")
        return product if added is None else product + added

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias")
        if self._type in ("gpt2", "phi", "phimoe", "starcoder2", *COHERE):
            x = x - x.mean(-1, keepdim=True)
        normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.epsilon)
        is_centred = self._type in GEMMA or (self._type == "qwen3_5_text" and not name.endswith("linear_attn.norm"))
        normed = normed * (1 + weight if is_centred else weight)
        return normed if bias is None else normed + bias


def rotated(x: Tensor, rotary: Rotary) -> Tensor:
    """Heads (H, N, D), of which the first values turn by their positions, as two halves."""
    half = len(rotary.inverse_frequencies)
    angles = torch.arange(x.shape[1])[:, None] * torch.from_numpy(rotary.inverse_frequencies)
    cosines, sines = (turned(angles).float() * rotary.magnitude for turned in (torch.cos, torch.sin))
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines, rest), -1)


def rotated_by_pairs(x: Tensor, rotary: Rotary) -> Tensor:
    """The same of heads whose values turn with their neighbours, first with second, third with fourth."""
    width = 2 * len(rotary.inverse_frequencies)
    halves = torch.cat((x[..., :width:2], x[..., 1:width:2]), -1)
    first, second = rotated(halves, rotary).chunk(2, -1)
    return torch.cat((torch.stack((first, second), -1).flatten(-2), x[..., width:]), -1)
