"""Adapters without torch: folders as PEFT writes them, and a manifest of a package that takes some."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.package_parts import LowRankPart, LowRankProduct
from tests.fake_target import make_manifest

RANK = 4
Q, K, V, DOWN = (
    *("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"),
    "model.layers.0.mlp.down_proj",
)
SHAPES = {Q: (16, 16), K: (8, 16), V: (8, 16), DOWN: (16, 24)}


def adapted_manifest(**changes: Any) -> Manifest:
    """Of a llama of one layer: four heads, two of keys and values."""
    parts = tuple(LowRankPart(name, SHAPES[name][0]) for name in (Q, K, V))
    products = LowRankProduct(16, parts), LowRankProduct(24, (LowRankPart(DOWN, 16),))
    sizes: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "adapted_products": products}
    return replace(make_manifest(), **sizes, **changes)


def factors(seed: int = 0, rank: int = RANK) -> dict[str, tuple[Array, Array]]:
    """By module: up (J, r) and down (r, K)."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=(shape[0], rank)).astype("f4"), rng.normal(size=(rank, shape[1])).astype("f4"))
        for name, shape in SHAPES.items()
    }


def write_adapter(folder: Path, given: Mapping[str, tuple[Array, Array]] | None = None, **config: Any) -> Path:
    """A folder with a scale of 2, but for what `config` says."""
    folder.mkdir(parents=True)
    tensors = {}
    for name, (up, down) in (factors() if given is None else given).items():
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "base_model_name_or_path": "tiny"} | config
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder
