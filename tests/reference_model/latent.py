"""Models whose keys and values come from a latent: DeepSeek's, GLM Flash, MiniCPM3.

Written from the papers of DeepSeek-V2 (arXiv 2405.04434) and V3 (2412.19437) and the makers' code, not from that of
transformers.
"""

import math

import torch
from torch import Tensor

from reader_edge_export.sources.layered_model import best
from tests.reference_model.layers import Rotary, mixed, rotary_of
from tests.reference_model.reference_model import ReferenceModel, rotated, rotated_by_pairs

_LATENT_EPSILON = 1e-6  # of the norms of what is made smaller, whatever config.json says


class LatentModel(ReferenceModel):
    """What is not as in other models. Keys and values are made for each head."""

    def epsilon_of(self, name: str) -> float:
        return _LATENT_EPSILON if name.endswith("_a_layernorm") else self.epsilon

    def num_kv_heads_of(self, layer: int) -> int:
        return 1

    def head_dim_of(self, layer: int) -> int:
        return int(self._value("kv_lora_rank") + self._value("qk_rope_head_dim"))

    def keeps_latent(self, layer: int) -> bool:
        return True

    def rotary(self, layer_type: str) -> Rotary:
        return rotary_of(self._config, self._defaults, int(self._value("qk_rope_head_dim")), layer_type)

    def scale(self, layer: int) -> float:
        plain = 1 / math.sqrt(self._value("qk_nope_head_dim") + self._value("qk_rope_head_dim"))
        given = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        weight = given.get("mscale_all_dim") or 0
        stretched = 0.1 * weight * math.log(given["factor"]) + 1 if weight else 1.0
        return plain * stretched**2

    def has_experts(self, layer: int) -> bool:
        if self._type == "minicpm3":
            return False
        kinds = self._config.get("mlp_layer_types")
        if kinds is not None:
            return bool(kinds[layer] == "sparse")
        usual = 1 if self._type == "glm4_moe_lite" else self._defaults.get("first_k_dense_replace")
        return bool(layer >= self._config.get("first_k_dense_replace", usual))

    def _embedded(self, token_ids: Tensor) -> Tensor:
        factor = self._value("scale_emb") if self._type == "minicpm3" else 1.0
        embedded: Tensor = self._weights["model.embed_tokens.weight"][token_ids] * factor
        return embedded

    def _head(self, hidden: Tensor) -> Tensor:
        base = self._value("dim_model_base") if self._type == "minicpm3" else None
        return super()._head(hidden / (self._width / base if base else 1.0))

    def _after_layer(self, layer: int, x: Tensor) -> Tensor:
        name, factor = f"model.layers.{layer}", 1.0
        if self._type == "minicpm3" and self._value("scale_depth"):
            factor = self._value("scale_depth") / math.sqrt(self.num_layers)
        x = x + factor * self._attention(layer, f"{name}.self_attn", self._norm(f"{name}.input_layernorm", x))
        return x + factor * self._bent(layer, f"{name}.mlp", self._norm(f"{name}.post_attention_layernorm", x))

    def _attention(self, layer: int, name: str, x: Tensor) -> Tensor:
        plain, turning = int(self._value("qk_nope_head_dim")), int(self._value("qk_rope_head_dim"))
        rank = int(self._value("kv_lora_rank"))
        queries = self._queries(name, x).view(len(x), self.num_heads, plain + turning).transpose(0, 1)
        latents, shared = self._linear(f"{name}.kv_a_proj_with_mqa", x).split([rank, turning], -1)
        made = self._linear(f"{name}.kv_b_proj", self._norm(f"{name}.kv_a_layernorm", latents))
        keys, values = made.view(len(x), self.num_heads, -1).transpose(0, 1).tensor_split([plain], -1)
        has_pairs = self._type != "minicpm3" and self._config.get("rope_interleave", True)
        turn, rotary = rotated_by_pairs if has_pairs else rotated, self.rotary("full_attention")
        queries = torch.cat((queries[..., :plain], turn(queries[..., plain:], rotary)), -1)
        keys = torch.cat((keys, turn(shared[None], rotary).expand(self.num_heads, -1, -1)), -1)
        scores = queries @ keys.transpose(1, 2) * self.scale(layer)
        is_later = torch.arange(len(x))[:, None] < torch.arange(len(x))
        shares = torch.softmax(scores.masked_fill(is_later, -math.inf), -1)
        return self._linear(f"{name}.o_proj", (shares @ values).transpose(0, 1).flatten(1))

    def _queries(self, name: str, x: Tensor) -> Tensor:
        if self._value("q_lora_rank") is None:
            return self._linear(f"{name}.q_proj", x)
        smaller = self._norm(f"{name}.q_a_layernorm", self._linear(f"{name}.q_a_proj", x))
        return self._linear(f"{name}.q_b_proj", smaller)

    def _bent(self, layer: int, name: str, x: Tensor) -> Tensor:
        if not self.has_experts(layer):
            return self._mlp(name, x)
        shares, chosen = self._routed(name, self._linear(f"{name}.gate", x))
        bent = mixed(x, chosen, shares, lambda expert, rows: self._gated(f"{name}.experts", expert, rows))
        return bent + self._mlp(f"{name}.shared_experts", x)

    def _routed(self, name: str, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Of groups by their best expert in V2, and by the sum of their two best in V3, whose bias only chooses."""
        is_second = self._type == "deepseek_v2"
        likely = torch.softmax(scores, -1) if is_second else torch.sigmoid(scores)
        lifted = likely if is_second else likely + self._weights[f"{name}.gate.e_score_correction_bias"]
        if not is_second or self._value("topk_method") == "group_limited_greedy":
            groups = lifted.unflatten(-1, (self._value("n_group"), -1))
            _, kept = best(groups.topk(1 if is_second else 2).values.sum(-1), self._value("topk_group"))
            is_kept = torch.zeros(groups.shape[:-1], dtype=torch.bool).scatter(-1, kept, value=True)
            lifted = groups.masked_fill(~is_kept[..., None], 0.0 if is_second else -math.inf).flatten(-2)
        _, chosen = best(lifted, self._value("num_experts_per_tok"))
        shares = likely.gather(-1, chosen)
        if not is_second and self._value("norm_topk_prob"):
            shares = shares / shares.sum(-1, keepdim=True)
        return shares * self._value("routed_scaling_factor"), chosen

    def _norm(self, name: str, x: Tensor) -> Tensor:
        normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.epsilon_of(name))
        return normed * self._weights[f"{name}.weight"]
