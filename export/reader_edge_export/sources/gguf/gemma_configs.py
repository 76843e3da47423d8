"""What config.json would hold beside what all have, for Gemma 2, 3 and 4."""

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.layer_sizes import Config, head_dim_with, heads, layer_types_of
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.rope import rotated_share
from reader_edge_runtime.errors import UnsupportedArchitectureError

# Gemma scales its queries by this instead of the head size in its largest model, as llama.cpp knows by the layers.
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


def gemma2(file: GgufFile, values: Metadata) -> Config:
    config = heads(file, values)
    return {
        **config,
        "query_pre_attn_scalar": _query_scalar(values, config["head_dim"], _GEMMA2_27B_LAYERS),
        "attn_logit_softcapping": values.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": values.number("final_logit_softcapping", 30.0) or None,
        "sliding_window": values.size("attention.sliding_window", 4096),
        "layer_types": layer_types_of(file, values, 2),
    }


def gemma3(file: GgufFile, values: Metadata) -> Config:
    config = heads(file, values)
    window = values.size("attention.sliding_window", 0, least=0)
    return {
        **config,
        "query_pre_attn_scalar": _query_scalar(values, config["head_dim"], _GEMMA3_27B_LAYERS),
        "final_logit_softcapping": values.number("final_logit_softcapping", 0.0) or None,
        "rope_local_base_freq": values.positive("rope.freq_base_swa", 10000.0),
        "sliding_window": window or values.size("context_length"),
        "layer_types": layer_types_of(file, values, 6) if window else ["full_attention"] * values.size("block_count"),
    }


def gemma4(file: GgufFile, values: Metadata) -> Config:
    """Layers with a window have sizes of their own, by keys that end in _swa; the others' are the plain ones."""
    num_layers, layer_types = values.size("block_count"), layer_types_of(file, values, 6)
    whole = layer_types.index("full_attention") if "full_attention" in layer_types else 0
    head_dim, windowed_dim = (head_dim_with(file, values, end) for end in ("", "_swa"))
    if values.size("rope.dimension_count", head_dim) != head_dim:
        raise file.error("rotates only a part of each head by its sizes, not by factors")
    if values.size("rope.dimension_count_swa", windowed_dim) != windowed_dim:
        raise file.error("rotates only a part of the heads of layers with a window")
    num_kv_heads = values.sizes_by_layer("attention.head_count_kv", num_layers, values.size("attention.head_count"))
    num_shared = values.size("attention.shared_kv_layers", 0, least=0)
    widths = values.sizes_by_layer("feed_forward_length", num_layers)
    is_wide = len(set(widths)) > 1
    wanted = [widths[0] * (2 if is_wide and layer >= num_layers - num_shared else 1) for layer in range(num_layers)]
    if widths != wanted:
        raise UnsupportedArchitectureError(f"'{file.path}' has MLPs of {sorted(set(widths))} values in turn.")
    has_values = f"blk.{whole}.attn_v.weight" in file.tensors
    return {
        "head_dim": windowed_dim,
        "global_head_dim": head_dim,
        "num_global_key_value_heads": None if has_values else num_kv_heads[whole],
        "attention_k_eq_v": not has_values,
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": values.positive("rope.freq_base"),
                "partial_rotary_factor": rotated_share(file, head_dim),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": values.positive("rope.freq_base_swa")},
        },
        "final_logit_softcapping": values.number("final_logit_softcapping", 0.0) or None,
        "sliding_window": values.size("attention.sliding_window"),
        "layer_types": layer_types,
        "num_kv_shared_layers": num_shared,
        "use_double_wide_mlp": is_wide,
        "hidden_size_per_layer_input": values.size("embedding_length_per_layer_input", least=0),
        "vocab_size_per_layer_input": file.tensors["token_embd.weight"].shape[0],
        **_gemma4_experts(values),
    }


def _gemma4_experts(values: Metadata) -> Config:
    """Beside the MLP of a layer, in files that have any."""
    num_experts = values.size("expert_count", 0, least=0)
    if not num_experts:
        return {}
    return {
        "enable_moe_block": True,
        "num_experts": num_experts,
        "top_k_experts": values.size("expert_used_count"),
        "moe_intermediate_size": values.size("expert_feed_forward_length"),
    }


def _query_scalar(values: Metadata, head_dim: int, num_layers_of_27b: int) -> int:
    is_27b = values.size("block_count") == num_layers_of_27b
    return values.size("embedding_length") // values.size("attention.head_count") if is_27b else head_dim
