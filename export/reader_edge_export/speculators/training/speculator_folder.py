"""A trained speculator as a folder in the format of the `speculators` package, which others read too."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from reader_edge_export.speculators.eagle3_module import Eagle3Module
from reader_edge_export.speculators.training.lessons import DEPTH
from reader_edge_export.speculators.training.new_network import ROPE_THETA
from reader_edge_runtime.atomic_file import write_failure
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.manifest import Manifest

_VERSION = "0.3.0"  # of the format


def write_eagle3(
    out: Path, module: Eagle3Module, scale: torch.Tensor, state_ids: Sequence[int], target: Manifest
) -> int:
    """Write a network in place of a folder, or make it; returns its bytes. scale: by which states were divided.

    The embedding is the target's, and not written. Raises ExportError.
    """
    tensors = {
        name: value.detach().cpu().contiguous()
        for name, value in module.state_dict().items()
        if name != "embed_tokens.weight" and not name.startswith("rotary_emb")
    }
    tensors["fc.weight"] = tensors["fc.weight"] / scale.cpu()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            (new / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
            told = _config(module, state_ids, target)
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


def _config(module: Eagle3Module, state_ids: Sequence[int], target: Manifest) -> dict[str, Any]:
    layer = module.config
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": _VERSION,
        "draft_vocab_size": module.form.draft_vocab_size,
        "target_hidden_size": module.form.state_size,
        "eagle_aux_hidden_state_layer_ids": list(state_ids),
        "norm_before_residual": module.form.norm_before_residual,
        "torch_dtype": "float32",
        "transformer_layer_config": {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "head_dim": layer.head_dim,
            "hidden_act": layer.hidden_act,
            "hidden_size": layer.hidden_size,
            "intermediate_size": layer.intermediate_size,
            "max_position_embeddings": layer.max_position_embeddings,
            "mlp_bias": False,
            "num_attention_heads": layer.num_attention_heads,
            "num_hidden_layers": layer.num_hidden_layers,
            "num_key_value_heads": layer.num_key_value_heads,
            "rms_norm_eps": layer.rms_norm_eps,
            "rope_theta": ROPE_THETA,
            "tie_word_embeddings": False,
            "vocab_size": layer.vocab_size,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": DEPTH}],
            "verifier": {"architectures": [], "name_or_path": target.source_name},
        },
    }
