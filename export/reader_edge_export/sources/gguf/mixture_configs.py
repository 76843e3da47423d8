"""What config.json would hold beside what all have, for mixtures of experts, whose shares add up to one."""

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.hybrid_configs import STATE_SIZES, granite_factors, granite_hybrid, lfm2, qwen35
from reader_edge_export.sources.gguf.layer_sizes import Config, heads, layer_types_of, num_layers_of
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_runtime.errors import UnsupportedArchitectureError

_SIGMOID = 2  # of llama.cpp's gating functions
_SHARES = "norm_top_k_prob"  # by Ollama's converter alone
_DOWN = ("ffn_down_exps", "mlp.experts.0.down_proj")


def qwen3moe(file: GgufFile, values: Metadata) -> Config:
    """All layers have experts."""
    return {**heads(file, values), **_experts(file, values), "norm_topk_prob": values.flag(_SHARES, True)}


def gpt_oss(file: GgufFile, values: Metadata) -> Config:
    """What bends an expert's values, and that the range of YaRN is not rounded, is as the makers have it."""
    config = heads(file, values)
    scaling = config.pop("rope_scaling")
    if scaling is not None and scaling["rope_type"] == "yarn":
        scaling |= {"truncate": False}
    width = values.size("feed_forward_length")
    if values.size("expert_feed_forward_length", width) != width:
        raise file.error(f"gives two sizes of its experts, one of them {width}")
    return {
        **config,
        "rope_scaling": scaling,
        "attention_bias": any(f"blk.0.{name}.bias" in file.tensors for name in ("attn_q", "attn_qkv")),
        "sliding_window": values.size("attention.sliding_window"),
        "layer_types": layer_types_of(file, values, 2),
        "num_local_experts": values.size("expert_count"),
        "num_experts_per_tok": values.size("expert_used_count"),
    }


def qwen35moe(file: GgufFile, values: Metadata) -> Config:
    """All layers have experts, and one that every token goes through."""
    experts = _experts(file, values)
    if not values.flag(_SHARES, True):
        raise UnsupportedArchitectureError(
            f"'{file.path}' does not let the shares of chosen experts add up to one, as Qwen 3.5 does."
        )
    shared = values.size("expert_shared_feed_forward_length", experts["moe_intermediate_size"])
    return {**qwen35(file, values), **experts, "shared_expert_intermediate_size": shared}


def lfm2moe(file: GgufFile, values: Metadata) -> Config:
    config = lfm2(file, values)
    del config["block_auto_adjust_ff_dim"]
    if (gating := values.size("expert_gating_func", _SIGMOID)) != _SIGMOID:
        raise UnsupportedArchitectureError(
            f"'{file.path}' chooses experts by the function {gating}, which LFM2 does not have."
        )
    return {
        **config,
        **_experts(file, values),
        "num_dense_layers": values.size("leading_dense_block_count", 0, least=0),
        "norm_topk_prob": True,
        "use_expert_bias": True,
        "routed_scaling_factor": values.positive("expert_weights_scale", 1.0),
    }


def _experts(file: GgufFile, values: Metadata) -> dict[str, int]:
    """The width of each is that of the last layer's where a file does not give it."""
    last = f"blk.{num_layers_of(file, values) - 1}"
    stored = (file.tensors.get(f"{last}.{name}.weight") for name in _DOWN)
    width = next((tensor.shape[-1] for tensor in stored if tensor is not None), None)
    return {
        "num_experts": values.size("expert_count"),
        "num_experts_per_tok": values.size("expert_used_count"),
        "moe_intermediate_size": values.size("expert_feed_forward_length", width),
    }


def granite_hybrid_moe(file: GgufFile, values: Metadata) -> Config:
    """Granite 4, with experts or without."""
    config = granite_hybrid(file, values)
    if not values.size("expert_count", 0, least=0):
        return config
    return config | _granite_experts(file, values)


def granite_moe(file: GgufFile, values: Metadata) -> Config:
    """Granite 4 with experts and without layers that keep states, whose sizes it may tell all the same."""
    for key in STATE_SIZES:
        if values.has(f"ssm.{key}"):
            values.size(f"ssm.{key}", least=0)
    return {
        **heads(file, values),
        **granite_factors(file, values),
        **_granite_experts(file, values),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "layer_types": ["full_attention"] * values.size("block_count"),
        "position_embedding_type": "rope" if values.flag("rope.scaling.finetuned", True) else "nope",
    }


def _granite_experts(file: GgufFile, values: Metadata) -> Config:
    shared = values.size("expert_shared_feed_forward_length", 0, least=0)
    if not shared:
        raise UnsupportedArchitectureError(
            f"'{file.path}' has experts and no MLP that every token goes through, as Granite 3 has: of Granite's "
            "mixtures those of Granite 4 can be exported."
        )
    return {
        "shared_intermediate_size": shared,
        "num_local_experts": values.size("expert_count"),
        "num_experts_per_tok": values.size("expert_used_count"),
    }
