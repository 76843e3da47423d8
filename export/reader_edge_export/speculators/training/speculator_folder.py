"""A trained speculator as a folder in the format of the `speculators` package, which others read too."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from reader_edge_export.package.package_folder import check_target, new_package
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.batches import DEPTH
from reader_edge_export.speculators.training.trained_format import ROPE_THETA, TrainedFormat
from reader_edge_runtime.errors import ExportPlaceError
from reader_edge_runtime.package.manifest import Manifest

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_FILE_NAMES = frozenset({_CONFIG, _WEIGHTS})

_VERSION = "0.3.0"  # of the format
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act"),
)


def check_folder(out: Path, is_forced: bool) -> None:
    """Raise ExportError unless a speculator may be written at `out`, an absolute path: in place of one alone."""
    if is_forced and out.is_dir() and (others := {file.name for file in out.iterdir()} - _FILE_NAMES):
        raise ExportPlaceError(f"'{out}' holds more than a speculator ({min(others)!r:.80}): choose another name.")
    check_target(out, is_forced, _CONFIG)


def write_folder(
    out: Path,
    trained_format: TrainedFormat,
    module: SpeculatorModule,
    scale: torch.Tensor,
    state_ids: Sequence[int],
    target: Manifest,
    is_forced: bool = False,
) -> int:
    """Write a network to a new folder, or in place of one if forced; returns its bytes.

    scale: by which states were divided. What is the target's is not written. Raises ExportError.
    """
    tensors = {
        name: value.detach().cpu().contiguous()
        for name, value in trained_format.tensors(module, scale).items()
        if not name.startswith("rotary_emb")
    }
    config = {**trained_format.config(module, state_ids), **_config(trained_format, module.config, target)}
    with new_package(out, is_forced, manifest_name=_CONFIG) as partial:
        (partial / _WEIGHTS).write_bytes(save(tensors, metadata={"format": "pt"}))
        (partial / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        check_folder(out, is_forced)  # again: a training takes long
    return sum((out / name).stat().st_size for name in _FILE_NAMES)


def _config(trained_format: TrainedFormat, layer: Any, target: Manifest) -> dict[str, Any]:
    """What is alike in all formats. layer: the config of a network's layer."""
    named = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(target.architecture)
    verifier = [named] if isinstance(named, str) else []
    return {
        "speculators_model_type": trained_format.name,
        "speculators_version": _VERSION,
        "torch_dtype": "float32",
        "transformer_layer_config": {
            "model_type": layer.model_type,
            "architectures": [_ARCHITECTURES[layer.model_type]],
            "attention_bias": False,
            "rope_theta": ROPE_THETA,
            "tie_word_embeddings": False,
            **{name: getattr(layer, name) for name in _SIZES},
        },
        "speculators_config": {
            "algorithm": trained_format.name,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": DEPTH}],
            "verifier": {"architectures": verifier, "name_or_path": target.source_name},
        },
    }
