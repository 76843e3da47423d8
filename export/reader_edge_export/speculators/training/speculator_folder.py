"""A trained speculator as a folder in the format of the `speculators` package, which others read too."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.lessons import DEPTH
from reader_edge_export.speculators.training.new_network import ROPE_THETA
from reader_edge_export.speculators.training.trained_format import TrainedFormat
from reader_edge_runtime.atomic_file import write_failure
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import Manifest

FILE_NAMES = frozenset({"config.json", "model.safetensors"})

_VERSION = "0.3.0"  # of the format
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act"),
)


def write_folder(
    out: Path,
    form: TrainedFormat,
    module: SpeculatorModule,
    scale: torch.Tensor,
    state_ids: Sequence[int],
    target: Manifest,
) -> int:
    """Write a network in place of a folder, or make it; returns its bytes. scale: by which states were divided.

    What is the target's is not written. Raises ExportError.
    """
    tensors = {
        name: value.detach().cpu().contiguous()
        for name, value in form.tensors(module, scale).items()
        if not name.startswith("rotary_emb")
    }
    told = {**form.config(module, state_ids), **_config(form, module.config, target)}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            (new / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
            (new / "config.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
            new.chmod(0o755)
            num_bytes = sum(file.stat().st_size for file in new.iterdir())
            if out.is_dir():
                shutil.rmtree(out)
            new.rename(out)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise ExportError(write_failure(out, error, "the same command resumes")) from error
    return num_bytes


def _config(form: TrainedFormat, layer: Any, target: Manifest) -> dict[str, Any]:
    """What is alike in all formats. layer: the config of a network's layer."""
    return {
        "speculators_model_type": form.name,
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
            "algorithm": form.name,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": DEPTH}],
            "verifier": {"architectures": [], "name_or_path": target.source_name},
        },
    }
