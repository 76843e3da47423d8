"""What config.json would hold beside what all have, for families with layers that keep states."""

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.layer_sizes import Config, head_dim_of, heads, layer_kinds, recurrent_layers
from reader_edge_export.sources.gguf.metadata import Metadata
from reader_edge_export.sources.gguf.rope import base_of, rotary_share, scaling_of
from reader_edge_runtime.errors import UnsupportedArchitectureError

STATE_SIZES = ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank")


def granite_hybrid(file: GgufFile, values: Metadata) -> Config:
    """Granite 4, whose layers without heads of keys and values are of Mamba2."""
    conv, state, groups, inner, num_heads = (values.size(f"ssm.{key}") for key in STATE_SIZES)
    hidden_size = values.size("embedding_length")
    if inner % num_heads or inner % hidden_size:
        raise file.error(f"has {inner} values in {num_heads} heads of states beside {hidden_size}")
    if groups != 1:
        raise UnsupportedArchitectureError(
            f"'{file.path}' has {groups} groups of heads of states, whose norm llama.cpp and transformers take "
            "differently: give the folder."
        )
    config = heads(file, values)
    return {
        **config,
        **granite_factors(file, values),
        "attention_bias": any(name.endswith("attn_q.bias") for name in file.tensors),
        "layer_types": layer_kinds(file, values, "linear_attention"),
        "position_embedding_type": "rope" if values.flag("rope.scaling.finetuned", True) else "nope",
        "shared_intermediate_size": values.size(
            "expert_shared_feed_forward_length", values.size("feed_forward_length")
        ),
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_d_conv": conv,
        "mamba_d_state": state,
        "mamba_n_groups": groups,
        "mamba_n_heads": num_heads,
        "mamba_d_head": inner // num_heads,
        "mamba_expand": inner // hidden_size,
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in file.tensors),
        "mamba_proj_bias": False,
    }


def granite_factors(file: GgufFile, values: Metadata) -> Config:
    """Converters leave those out that are nought or of no effect."""
    return {
        "attention_multiplier": values.number("attention.scale", 0.0) or head_dim_of(file, values) ** -0.5,
        "embedding_multiplier": values.number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": values.number("residual_scale", 0.0) or 1.0,
        "logits_scaling": values.number("logit_scale", 0.0) or 1.0,
    }


def lfm2(file: GgufFile, values: Metadata) -> Config:
    config = heads(file, values)
    del config["head_dim"]
    return {
        **config,
        "norm_eps": config.pop("rms_norm_eps"),
        "conv_L_cache": values.size("shortconv.l_cache", least=2),
        "conv_bias": any(name.endswith("shortconv.conv.bias") for name in file.tensors),
        "layer_types": layer_kinds(file, values, "conv"),
        "block_auto_adjust_ff_dim": False,  # the file has the size that it comes to
    }


def qwen35(file: GgufFile, values: Metadata) -> Config:
    head_dim = head_dim_of(file, values)
    num_values, inner = values.size("ssm.time_step_rank"), values.size("ssm.inner_size")
    kinds = ("full_attention", "linear_attention")
    return {
        "head_dim": head_dim,
        "rms_norm_eps": values.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": base_of(file, values),
        "rope_scaling": scaling_of(file, values),
        "partial_rotary_factor": rotary_share(file, values, head_dim),
        "linear_conv_kernel_dim": values.size("ssm.conv_kernel", least=2),
        "linear_num_key_heads": values.size("ssm.group_count"),
        "linear_num_value_heads": num_values,
        "linear_key_head_dim": values.size("ssm.state_size"),
        "linear_value_head_dim": max(inner // num_values, 1),
        "layer_types": [kinds[is_recurrent] for is_recurrent in recurrent_layers(file, values)],
    }
