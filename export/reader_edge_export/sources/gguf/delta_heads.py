"""The order in which GGUF files have the heads of gated delta layers."""

from typing import Any

import numpy as np

from reader_edge_runtime.arrays import Int64Array

# Value heads of a gated delta layer lie in the order of llama.cpp's converter, one of each key head in turn;
# transformers has those of a key head side by side.
_BEHIND_KEYS = ("in_proj_qkv.weight", "conv1d.weight")  # which queries and keys are in front of


def rows_by_key_head(config: Any) -> Int64Array:
    """Which row of a file's queries, keys, values and gates, below each other, each row of Qwen3-Next's matrix is."""
    num_keys, group = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    sizes = [config.linear_key_head_dim] * 2 + [group * config.linear_value_head_dim] * 2
    parts, start = [], 0
    for size in sizes:
        parts.append(start + np.arange(num_keys * size).reshape(num_keys, size))
        start += num_keys * size
    return np.concatenate(parts, axis=1).reshape(-1)


def value_rows(config: Any, name: str) -> Int64Array | None:
    """Which of its rows in the file each row of a parameter is; None where they are in order."""
    if not _is_reordered(config, name):
        return None
    own = name.split(".linear_attn.")[1]
    if own in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        return _order(config, 1)
    values = _order(config, config.linear_value_head_dim)
    if own == "in_proj_z.weight":
        return values
    num_before = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    return np.concatenate((np.arange(num_before), num_before + values)) if own in _BEHIND_KEYS else None


def value_columns(config: Any, name: str) -> Int64Array | None:
    """The same of a parameter's columns."""
    is_reading = _is_reordered(config, name) and name.endswith(".linear_attn.out_proj.weight")
    return _order(config, config.linear_value_head_dim) if is_reading else None


def _is_reordered(config: Any, name: str) -> bool:
    return ".linear_attn." in name and config.linear_num_value_heads != config.linear_num_key_heads


def _order(config: Any, size: int) -> Int64Array:
    """By heads of so many values each."""
    heads = np.arange(config.linear_num_value_heads).reshape(-1, config.linear_num_key_heads).T.reshape(-1, 1)
    return (heads * size + np.arange(size)).reshape(-1)
