"""Adapters as PEFT and as llama.cpp's converter write them, with random factors, and what they make of a matrix."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reader_edge_export.sources.latent_heads import HeadProduct
from reader_edge_runtime.arrays import Array
from tests.export.gguf_models import gguf_weights
from tests.gguf_files import write_gguf

RANK = 3  # which no size of a tiny model is
Factors = Mapping[str, tuple[Array, Array]]  # by module: up (J, r), down (r, K)


def matrices(model: PreTrainedModel) -> dict[str, Array]:
    """(J, K), outputs first, of all linear modules but the head."""
    return {
        name: module.weight.detach().numpy().T if isinstance(module, Conv1D) else module.weight.detach().numpy()
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D | HeadProduct) and name != "lm_head"
    }


def draw_factors(model: PreTrainedModel, rank: int = RANK) -> dict[str, tuple[Array, Array]]:
    """Of all its matrices."""
    rng = np.random.default_rng(0)
    return {
        name: (
            rng.normal(scale=0.2, size=(matrix.shape[0], rank)).astype(np.float32),
            rng.normal(scale=0.2, size=(rank, matrix.shape[1])).astype(np.float32),
        )
        for name, matrix in matrices(model).items()
    }


def peft_tensors(factors: Factors, lengths: Mapping[str, Array] | None = None) -> dict[str, torch.Tensor]:
    """By the names of PEFT's files."""
    found = {}
    for name, (up, down) in factors.items():
        found[f"base_model.model.{name}.lora_A.weight"] = torch.from_numpy(down)
        found[f"base_model.model.{name}.lora_B.weight"] = torch.from_numpy(up)
    magnitudes = {f"base_model.model.{name}.lora_magnitude_vector": each for name, each in (lengths or {}).items()}
    return found | {name: torch.from_numpy(each) for name, each in magnitudes.items()}


def peft_config(rank: int = RANK, **changes: Any) -> dict[str, Any]:
    """What PEFT 0.21 writes of a LoRA, with `changes`."""
    off = (
        *("alora_invocation_tokens", "arrow_config", "corda_config", "kasa_config", "layer_replication"),
        *("layers_pattern", "layers_to_transform", "megatron_config", "modules_to_save", "monteclora_config"),
        "target_parameters",
    )
    return {
        **dict.fromkeys(
            (*off, "trainable_token_indices", "use_bdlora", "velora_config", "exclude_modules", "revision")
        ),
        **dict.fromkeys(("lora_bias", "use_dora", "use_qalora", "use_rslora", "ensure_weight_tying"), False),
        **{"alpha_pattern": {}, "rank_pattern": {}, "loftq_config": {}, "auto_mapping": None, "eva_config": None},
        **{"base_model_name_or_path": "tiny", "bias": "none", "fan_in_fan_out": False, "inference_mode": True},
        **{"init_lora_weights": True, "lora_alpha": 8, "lora_dropout": 0.05, "megatron_core": "megatron.core"},
        **{"peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": rank},
        **{"target_modules": ["q_proj"], "task_type": "CAUSAL_LM", "lora_ga_config": None},
        **changes,
    }


def write_peft(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    """A folder with these tensors."""
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(peft_config(**config)))
    return folder


def write_gguf_adapter(
    path: Path, architecture: str, tensors: Mapping[str, Array], values: Mapping[str, Any] | None = None
) -> Path:
    """A file with these tensors."""
    given = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
    return write_gguf(path, architecture, given | dict(values or {}), tensors)


def gguf_factors(model: PreTrainedModel, architecture: str, factors: Factors) -> dict[str, Array]:
    """By the names of converters, with rows and columns where they put those of the matrices."""
    found: dict[str, Array] = {}
    for name, (up, down) in factors.items():
        if name.endswith("linear_attn.out_proj"):  # the one whose columns have another order
            ((stored, columns),) = _as_stored(model, architecture, name, down).items()
            found |= {f"{stored}.lora_a": columns, f"{stored}.lora_b": up}
            continue
        for stored, rows in _as_stored(model, architecture, name, up).items():
            found |= {f"{stored}.lora_a": down, f"{stored}.lora_b": rows}
    return found


def _as_stored(model: PreTrainedModel, architecture: str, name: str, values: Array) -> dict[str, Array]:
    """A converter's tensors of a module whose weight is replaced, which alone have an axis of the rank."""
    changed = copy.deepcopy(model)
    module = changed.get_submodule(name)
    own = values.T if isinstance(module, Conv1D) else values
    module.weight = torch.nn.Parameter(torch.from_numpy(np.ascontiguousarray(own)))
    stored = gguf_weights(changed, architecture)
    return {each: np.ascontiguousarray(array) for each, array in stored.items() if RANK in array.shape}


def added(matrix: Array, up: Array, down: Array, scale: float, lengths: Array | None = None) -> Array:
    """A matrix (J, K) with an adapter in it, by its definition, in float64."""
    changed = matrix.astype(np.float64) + scale * (up.astype(np.float64) @ down.astype(np.float64))
    if lengths is not None:
        changed *= (lengths / np.sqrt((changed**2).sum(axis=1)))[:, None]
    return changed
