"""Tiny models of every family, written as GGUF by llama.cpp's own converter, to compare with our tests' writer."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from benchmarks.peers.prepare import run
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_runtime.untrusted.gguf_header import Value
from tests.export.gguf_models import GGUF_MODELS, build_source, write_model
from tests.tiny_models import MAX_CONTEXT, VARIANTS

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"
# What llama.cpp leaves out of a family, or takes for granted of it. 304: what its tokenizer has, for Gemma's converter.
CHANGES: dict[str, dict[str, Any]] = {
    "phi3": {"sliding_window": None, "partial_rotary_factor": 1.0},
    "gemma3_text": {"vocab_size": 304, "num_hidden_layers": 6, "layer_types": [*[_WINDOWED] * 5, _WHOLE]},
    "gemma4_text": {  # the last two layers with keys of their own: one with a window, one without
        "vocab_size": 304,
        "vocab_size_per_layer_input": 304,
        "layer_types": [_WINDOWED, _WINDOWED, _WHOLE, _WINDOWED, _WHOLE],
    },
    "gemma3n_text": {  # sizes that llama.cpp does not read; MLPs wide enough that a deviation of one value less is near
        **{"vocab_size": 304, "vocab_size_per_layer_input": 304, "hidden_size_per_layer_input": 256, "laurel_rank": 64},
        **{"altup_num_inputs": 4, "altup_active_idx": 0, "intermediate_size": [4096] * 25, "num_hidden_layers": 25},
        **{"num_kv_shared_layers": 5, "layer_types": [*[_WINDOWED] * 4, _WHOLE] * 5},
        **{"activation_sparsity_pattern": [*[0.95] * 10, *[0.0] * 15], "final_logit_softcapping": 30.0},
    },
    # Windows in its largest alone.
    "exaone4": {"num_hidden_layers": 64, "layer_types": [*[_WINDOWED] * 3, _WHOLE] * 16},
    "seed_oss": {"attention_out_bias": False},
    "arcee": {"attention_bias": False, "mlp_bias": False},  # llama.cpp has no place for them
    "hunyuan_v1_dense": {"attention_bias": False},
    **{name: {"use_bias": False} for name in ("ernie4_5", "ernie4_5_moe")},
    "internlm3": {"attention_bias": False, "mlp_bias": False},
    "lfm2": {"conv_bias": False},
    "deepseek_v2": {  # of groups it takes the two best, and queries without a rank in models of 26 and 27 layers alone
        **{"n_group": 1, "topk_group": 1, "topk_method": "greedy"},
        "q_lora_rank": 48,
    },
    "qwen3_5_text": {"linear_value_head_dim": 16},  # as large as those of keys
    "qwen3_5_moe_text": {"linear_value_head_dim": 16},
    "lfm2_moe": {"conv_bias": False},
    "qwen3_next": {"linear_value_head_dim": 16},
    "falcon_h1": {"projectors_bias": False},
    "nemotron_h": {"use_bias": False, "mamba_num_heads": 8},  # heads of 64 values in all at least
    "gpt_oss": {  # YaRN's range is from 0 to 4, whole numbers, which llama.cpp rounds it to
        "rope_parameters": {
            **{"rope_type": "yarn", "factor": 4.0, "truncate": False, "original_max_position_embeddings": 32},
            "rope_theta": (32 / (2 * math.pi)) ** (32 / (2 * 4)) * (1 + 1e-6),
        }
    },
}
_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48}
_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # by name: a model type, what it is tried with beside CHANGES
    "granitemoehybrid-moe": ("granitemoehybrid", _EXPERTS),
    "granitemoehybrid-moe-attention": (
        "granitemoehybrid",
        {**_EXPERTS, "layer_types": [_WHOLE] * 2, "position_embedding_type": "rope"},
    ),
}
_VARIANTS["nemotron_h-experts"] = (
    "nemotron_h-experts",
    {**CHANGES["nemotron_h"], "n_group": 1, "topk_group": 1},  # of groups it takes all
)
_VARIANTS["gemma4_text-moe"] = (
    "gemma4_text",
    {
        **{key: value for key, value in VARIANTS["gemma4_text-experts"][1].items() if "size" not in key},
        **{"hidden_size_per_layer_input": 0, "moe_intermediate_size": 48},
        "layer_types": CHANGES["gemma4_text"]["layer_types"],
    },
)
FAMILIES = (*GGUF_MODELS, *_VARIANTS)
_SCORING = {"deepseek_v2": "softmax", "deepseek_v3": "sigmoid"}
_OLDER_KINDS = {"granitemoehybrid": {"linear_attention": "mamba", "full_attention": "attention"}}


def converted_model(family: str, sources: Path, folder: Path) -> tuple[PreTrainedModel, Path]:
    """A model of one of FAMILIES, and its file by the converter in llama.cpp's `sources`. Raises StepError."""
    model_type, changes = _VARIANTS.get(family, (family, {}))
    source, file = folder / family, folder / f"{family}-f32.gguf"  # its end asks for a cache in fp32
    model = build_source(model_type, source, **CHANGES.get(model_type, {}) | changes)
    _as_published(source / "config.json")
    script = Path(__file__).with_name("llama_cpp_converter.py")
    run([sys.executable, "-P", script, sources, source, file], folder, {})  # tokenizers.py beside it is another module
    return model, file


def _as_published(config_file: Path) -> None:
    """The converter knows keys and names that transformers 5 does not write any more."""
    config = json.loads(config_file.read_text())
    if config["model_type"] == "phimoe":
        config |= {"architectures": ["PhiMoEForCausalLM"], "original_max_position_embeddings": MAX_CONTEXT}
    kinds = _OLDER_KINDS.get(config["model_type"], {})
    if kinds:
        config["layer_types"] = [kinds[kind] for kind in config["layer_types"]]
    if config["model_type"] in _SCORING:
        config["scoring_func"] = _SCORING[config["model_type"]]
    if "mlp_layer_types" in config:
        config["first_k_dense_replace"] = config["mlp_layer_types"].count("dense")
    if "n_positions" in config:
        config["n_ctx"] = config["n_positions"]
    if config["model_type"] == "gemma3n_text":
        _add_unread(config_file.with_name("model.safetensors"), config)
    config_file.write_text(json.dumps(config))


def _add_unread(file: Path, config: dict[str, Any]) -> None:
    """Keys and values of layers that share those of others, which makers' folders have and llama.cpp asks for."""
    tensors, num_layers = load_file(file), config["num_hidden_layers"]
    for layer in range(num_layers - config["num_kv_shared_layers"], num_layers):
        for part in ("k_proj", "v_proj", "k_norm"):
            name = f"model.layers.{{}}.self_attn.{part}.weight"
            tensors[name.format(layer)] = tensors[name.format(0)].clone()
    save_file(tensors, file, {"format": "pt"})


def unlike_tests(model: PreTrainedModel, file: Path) -> list[str]:
    """Names of the tensors and values of a converted file that the tests' writer gives another value, or none."""
    mine = GgufFile.open(write_model(model, file.with_suffix(".tests.gguf")))
    theirs = GgufFile.open(file)
    unlike = [name for name in {**mine.tensors, **theirs.tensors} if not _is_same_tensor(mine, theirs, name)]
    prefix = f"{theirs.metadata['general.architecture']}."
    values = [key for key in {**mine.metadata, **theirs.metadata} if key.startswith(prefix)]
    return unlike + [key for key in values if not _is_same(mine.metadata.get(key), theirs.metadata.get(key))]


def _is_same_tensor(mine: GgufFile, theirs: GgufFile, name: str) -> bool:
    if name not in mine.tensors or name not in theirs.tensors:
        return False
    first, second = mine.values(name), theirs.values(name)
    return first.shape == second.shape and bool((first == second).all())


def _is_same(first: Value | None, second: Value | None) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-6)  # files have fp32
    return first == second
