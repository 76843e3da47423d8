"""What config.json would hold of models whose keys and values come from a latent: DeepSeek's, GLM Flash, MiniCPM3.

Newer files have the matrices of keys and of values apart and by head, and tell the sizes of heads under keys of their
own, beside those of the latent; older ones have one matrix, and the sizes of heads alone.
"""

from typing import Any

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.layer_sizes import Config, architecture_of, num_layers_of
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.rope import base_of, longrope_of, original_context_of, scaling_of
from reader_edge_runtime.errors import UnsupportedArchitectureError

_SOFTMAX, _SIGMOID = 1, 2  # of llama.cpp's gating functions


def deepseek2(file: GgufFile, values: Metadata) -> Config:
    """Files of V2, of V3 and of GLM Flash, which differ in how experts are chosen."""
    num_experts, num_chosen = (values.size(f"expert_{name}count", 0, least=0) for name in ("", "used_"))
    if not num_experts or not num_chosen:
        raise UnsupportedArchitectureError(f"'{file.path}' is a DeepSeek model without experts, which is not read.")
    num_groups, num_kept = (values.size(f"expert_group_{name}count", 1, least=0) or 1 for name in ("", "used_"))
    size = num_experts // num_groups
    if size * num_groups != num_experts or size < min(2, num_experts) or not num_chosen <= num_kept * size:
        raise file.error(f"has {num_groups} groups of {num_experts} experts, of which {num_kept} hold {num_chosen}")
    has_biases = any(name.endswith(".exp_probs_b.bias") for name in file.tensors)  # GLM Flash's files say no more
    usual = _SIGMOID if has_biases else _SOFTMAX
    gating, are_shares = values.size("expert_gating_func", usual), values.flag("expert_weights_norm", False)
    if gating not in (_SOFTMAX, _SIGMOID) or (gating == _SOFTMAX and are_shares):
        raise UnsupportedArchitectureError(
            f"'{file.path}' chooses experts by the function {gating}{' and shares' * are_shares}, which DeepSeek's "
            "models do not."
        )
    router: Config = {"model_type": "deepseek_v3", "norm_topk_prob": are_shares, "rope_interleave": True}
    if gating == _SOFTMAX:
        method = "group_limited_greedy" if num_groups > 1 else "greedy"
        router = {"model_type": "deepseek_v2", "topk_method": method}
    return {
        **_attention(file, values),
        **router,
        "rope_parameters": {"rope_theta": base_of(file, values), **_stretched(file, values)},
        "n_routed_experts": num_experts,
        "num_experts_per_tok": num_chosen,
        "n_group": num_groups,
        "topk_group": num_kept,
        "n_shared_experts": values.size("expert_shared_count"),
        "moe_intermediate_size": values.size("expert_feed_forward_length"),
        "routed_scaling_factor": values.positive_or_zero("expert_weights_scale", 1.0),
        "first_k_dense_replace": min(values.size("leading_dense_block_count", 0, least=0), num_layers_of(file, values)),
    }


def minicpm3(file: GgufFile, values: Metadata) -> Config:
    """What its embeddings, its layers and its logits are scaled by is as llama.cpp has it; files do not tell."""
    original = original_context_of(values)
    factors = longrope_of(file, values, original)
    rope: dict[str, Any] = {"rope_type": "default"}
    if factors is not None:
        magnitude = values.number("rope.scaling.attn_factor", 1.0)
        rope = {key: factors[key] for key in ("long_factor", "short_factor")}
        rope |= {"rope_type": "longrope", "attention_factor": magnitude, "original_max_position_embeddings": original}
    return {
        **_attention(file, values),
        "rope_parameters": {"rope_theta": base_of(file, values), **rope},
        **{"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    }


def _attention(file: GgufFile, values: Metadata) -> Config:
    num_heads, turning = values.size("attention.head_count"), values.size("rope.dimension_count", least=2)
    rank, usual = values.size("attention.kv_lora_rank"), values.size("embedding_length") // num_heads
    key_size, value_size = (values.size(f"attention.{kind}_length", usual) for kind in ("key", "value"))
    if values.has("attention.key_length_mla"):
        if (key_size, value_size) != (rank + turning, rank):
            raise file.error(
                f"has latents of {key_size} and {value_size} values instead of {rank + turning} and {rank}"
            )
        key_size, value_size = (values.size(f"attention.{kind}_length_mla") for kind in ("key", "value"))
    if key_size <= turning or turning % 2:
        raise file.error(f"rotates {turning} of {key_size} values of a head")
    return {
        "num_key_value_heads": num_heads,
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "kv_lora_rank": rank,
        "q_lora_rank": values.size("attention.q_lora_rank", 0, least=0) or None,
        "qk_nope_head_dim": key_size - turning,
        "qk_rope_head_dim": turning,
        "v_head_dim": value_size,
    }


def _stretched(file: GgufFile, values: Metadata) -> dict[str, Any]:
    """Of YaRN, whose attention llama.cpp scales by a number of its own and not in the angles."""
    scaling = scaling_of(file, values) or {"rope_type": "default"}
    key = "rope.scaling.yarn_log_multiplier"
    weight = values.positive_or_zero(key)
    if scaling["rope_type"] != "yarn":
        return scaling
    if f"{architecture_of(file)}.{key}" in file.metadata:  # a tenth there, and whole under Ollama's name
        weight *= 10
    return scaling | {"attention_factor": 1.0} | ({"mscale_all_dim": round(weight, 6)} if weight else {})
