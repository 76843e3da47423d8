"""What config.json would hold beside what all have: Granite, Falcon-H1 and Nemotron, which have layers of Mamba2."""

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.layer_sizes import Config, head_dim_of, heads, layer_kinds, num_layers_of
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_runtime.errors import UnsupportedArchitectureError

STATE_SIZES = ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank")


def granite_hybrid_moe(file: GgufFile, values: Metadata) -> Config:
    """Granite 4, with experts or without."""
    config = granite_hybrid(file, values)
    if not values.size("expert_count", 0, least=0):
        return config
    return config | _granite_experts(file, values)


def granite_hybrid(file: GgufFile, values: Metadata) -> Config:
    """Granite 4, whose layers without heads of keys and values are of Mamba2."""
    inner, hidden_size, groups = (values.size(key) for key in ("ssm.inner_size", "embedding_length", "ssm.group_count"))
    if inner % hidden_size:
        raise file.error(f"has {inner} values in heads of states beside {hidden_size}")
    if groups != 1:
        raise UnsupportedArchitectureError(
            f"'{file.path}' has {groups} groups of heads of states, whose norm llama.cpp and transformers take "
            "differently: give the folder."
        )
    config = heads(file, values)
    return {
        **config,
        **granite_factors(file, values),
        **_mamba2(file, values),
        "attention_bias": any(name.endswith("attn_q.bias") for name in file.tensors),
        "layer_types": layer_kinds(file, values, "linear_attention"),
        "position_embedding_type": "rope" if values.flag("rope.scaling.finetuned", True) else "nope",
        "shared_intermediate_size": values.size(
            "expert_shared_feed_forward_length", values.size("feed_forward_length")
        ),
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_expand": inner // hidden_size,
    }


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


def granite_factors(file: GgufFile, values: Metadata) -> Config:
    """Converters leave those out that are nought or of no effect."""
    return {
        "attention_multiplier": values.number("attention.scale", 0.0) or head_dim_of(file, values) ** -0.5,
        "embedding_multiplier": values.number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": values.number("residual_scale", 0.0) or 1.0,
        "logits_scaling": values.number("logit_scale", 0.0) or 1.0,
    }


def falcon_h1(file: GgufFile, values: Metadata) -> Config:
    """Converters multiply weights by the family's factors; llama.cpp has the norm behind the gate."""
    return {
        **heads(file, values),
        **_mamba2(file, values),
        "mamba_d_ssm": values.size("ssm.inner_size"),
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in file.tensors,
        "mamba_norm_before_gate": False,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "projectors_bias": "blk.0.ssm_out.bias" in file.tensors,
    }


def nemotron_h(file: GgufFile, values: Metadata) -> Config:
    """Layers with heads of keys and values attend, those with a width are an MLP or experts, others are of Mamba2."""
    num_layers, num_all = num_layers_of(file, values), values.size("block_count")
    widths = values.sizes_by_layer("feed_forward_length", num_all)[:num_layers]
    other = "moe" if values.size("expert_count", 0, least=0) else "mlp"
    attending = layer_kinds(file, values, "linear_attention")[:num_layers]
    kinds = [other if width else kind for width, kind in zip(widths, attending, strict=True)]
    if values.flag("rope.scaling.finetuned", False) or "output.weight" not in file.tensors:
        raise UnsupportedArchitectureError(f"'{file.path}' has positions or no matrix of its own for logits.")
    mamba = _mamba2(file, values)
    config = {
        "head_dim": head_dim_of(file, values),
        "layer_norm_epsilon": values.positive("attention.layer_norm_rms_epsilon"),
        "layers_block_type": kinds,
        "time_step_min": 0.0,
        "mamba_num_heads": mamba["mamba_n_heads"],
        "mamba_head_dim": mamba["mamba_d_head"],
        "n_groups": mamba["mamba_n_groups"],
        "ssm_state_size": mamba["mamba_d_state"],
        "conv_kernel": mamba["mamba_d_conv"],
        "use_conv_bias": mamba["mamba_conv_bias"],
        "use_bias": mamba["mamba_proj_bias"],
        "mlp_bias": any(name.endswith(("ffn_up.bias", "ffn_up_shexp.bias")) for name in file.tensors),
    }
    values.number("rope.freq_base", 0.0)  # which is of no use here
    values.size("rope.dimension_count", 0, least=0)
    return config | (_nemotron_experts(file, values) if other == "moe" else {})


def _nemotron_experts(file: GgufFile, values: Metadata) -> Config:
    if values.size("expert_shared_count", 1) != 1:
        raise UnsupportedArchitectureError(f"'{file.path}' has several experts that every token goes through.")
    return {
        "n_routed_experts": values.size("expert_count"),
        "num_experts_per_tok": values.size("expert_used_count"),
        "moe_intermediate_size": values.size("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": values.size("expert_shared_feed_forward_length"),
        "moe_latent_size": values.size("moe_latent_size", 0, least=0) or None,
        "norm_topk_prob": values.flag("expert_weights_norm", True),
        "routed_scaling_factor": values.positive("expert_weights_scale", 1.0),
        "n_group": values.size("expert_group_count", 1),
        "topk_group": values.size("expert_group_used_count", 1),
    }


def _mamba2(file: GgufFile, values: Metadata) -> Config:
    conv, state, groups, inner, num_heads = (values.size(f"ssm.{key}") for key in STATE_SIZES)
    if inner % num_heads or num_heads % groups:
        raise file.error(f"has {inner} values in {num_heads} heads and {groups} groups of states")
    return {
        "mamba_d_conv": conv,
        "mamba_d_state": state,
        "mamba_n_groups": groups,
        "mamba_n_heads": num_heads,
        "mamba_d_head": inner // num_heads,
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in file.tensors),
        "mamba_proj_bias": any(name.endswith("ssm_in.bias") for name in file.tensors),
    }
