"""Record what transformers 5 writes as config.json for tiny models, and the logits it computes.

Run by hand, with transformers 5 and PyTorch: python -m tests.export.record_transformers5 [NAME ...]
Names: of the cases to record, all where none is given; what is recorded of others stays, since a machine's last digits
differ. Weights are made from their names, so that they need not be kept.
"""

import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.tiny_models import LLAMA3, MAX_CONTEXT, NUM_LAYERS, TINY_CONFIGS, VARIANTS

_DATA = Path(__file__).parents[1] / "data"
_FILE, _DEFAULTS_FILE = _DATA / "transformers5.json", _DATA / "transformers5_defaults.json"
RECORDED: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))  # by name: config, logits
DEFAULTS: dict[str, dict[str, Any]] = json.loads(_DEFAULTS_FILE.read_text(encoding="utf-8"))  # by model type
TOKEN_IDS = [3 + 37 * i * i % 310 for i in range(48)]
NUM_ROWS, NUM_COLUMNS = 3, 32  # of the last logits, those that are kept

_LONG = {"rope_type": "longrope", "short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0] * 8}
_THETA = {"rope_theta": 500000.0}
_LOCAL_BASES = ("gemma3_text", "gemma3n_text")  # whose windowed layers have a base by a key of its own
_PARTIAL = ("phi", "glm4", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
_OWN_ROPE: dict[str, dict[str, Any]] = {  # by model type, beside that
    **{name: {"partial_rotary_factor": 0.25} for name in _PARTIAL},
    "apertus": {**LLAMA3, "original_max_position_embeddings": 32},
    "hunyuan_v1_dense": {"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0},
}


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> (model type, what its config is given). No rotary embedding keeps its class's own values."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for model_type, config in TINY_CONFIGS.items():
        rope: dict[str, Any] = {"rope_parameters": {"rope_type": "default", **_THETA}}
        rope["rope_parameters"] |= _OWN_ROPE.get(model_type, {})
        if model_type in _LOCAL_BASES:
            linear = {"rope_type": "linear", "factor": 8.0, "rope_theta": 300000.0}
            rope = {"rope_parameters": {"full_attention": linear, "sliding_attention": {"rope_theta": 3000.0}}}
        if model_type == "ministral3":
            rope["rope_parameters"] |= {**config["rope_parameters"], **_THETA, "max_position_embeddings": MAX_CONTEXT}
        if model_type in ("gpt_oss", "deepseek_v2"):
            rope["rope_parameters"] |= {**config["rope_parameters"], **_THETA}
        if model_type == "olmo3":
            yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 300000.0}
            rope = {"rope_parameters": {"full_attention": yarn, "sliding_attention": {"rope_theta": 300000.0}}}
        if model_type == "gemma4_text":
            still = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 300000.0}
            rope = {"rope_parameters": {"full_attention": still, "sliding_attention": {"rope_theta": 3000.0}}}
        own = {key: value for key, value in config.items() if key not in ("partial_rotary_factor", "layer_rope_theta")}
        found[model_type] = (model_type, own | ({} if model_type in ("gpt2", "nemotron_h") else rope))
    scaled = {
        "linear": {"rope_type": "linear", "factor": 4.0},
        "dynamic": {"rope_type": "dynamic", "factor": 4.0},
        "llama3": {**LLAMA3, "original_max_position_embeddings": 32},
        "yarn": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "beta_fast": 16.0},
        "yarn-mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False},
    }
    for name, scaling in scaled.items():
        found[f"llama-{name}"] = ("llama", TINY_CONFIGS["llama"] | {"rope_parameters": {**scaling, **_THETA}})
    phi3 = TINY_CONFIGS["phi3"] | {"original_max_position_embeddings": 64, "rope_parameters": {**_LONG, **_THETA}}
    found["phi3-longrope"] = ("phi3", phi3)
    found["qwen2-no-window"] = ("qwen2", {**TINY_CONFIGS["llama"], "rope_parameters": dict(_THETA)})
    found["mistral-yarn"] = ("mistral", TINY_CONFIGS["mistral"] | {"rope_parameters": {**scaled["yarn"], **_THETA}})
    windowed = {"rope_type": "linear", "factor": 4.0, "rope_theta": 3000.0}
    local = {"rope_parameters": {"full_attention": dict(_THETA), "sliding_attention": windowed}}
    found["gemma3_text-local"] = ("gemma3_text", TINY_CONFIGS["gemma3_text"] | local)
    whole = {"layer_types": ["full_attention"] * NUM_LAYERS, "sliding_window": None}
    llama3 = {**scaled["llama3"], **_THETA}
    found["exaone4-no-window"] = ("exaone4", TINY_CONFIGS["exaone4"] | whole | {"rope_parameters": llama3})
    rotated = {"position_embedding_type": "rope", "time_step_limit": [0.1, 0.5], "mamba_conv_bias": False}
    positions = {"rope_parameters": {"rope_type": "default", **_THETA}}
    found["granitemoehybrid-rope"] = ("granitemoehybrid", TINY_CONFIGS["granitemoehybrid"] | rotated | positions)
    plain: dict[str, Any] = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "attention_k_eq_v": False}
    plain |= {"num_global_key_value_heads": None, "rope_parameters": found["gemma4_text"][1]["rope_parameters"]}
    found["gemma4_text-plain"] = ("gemma4_text", TINY_CONFIGS["gemma4_text"] | plain)
    sizes = {**VARIANTS["gemma4_text-experts"][1], "rope_parameters": plain["rope_parameters"]}
    found["gemma4_text-experts"] = ("gemma4_text", sizes)
    long = {"rope_parameters": {**_LONG, **_THETA, "original_max_position_embeddings": 64}, "q_lora_rank": None}
    found["minicpm3-longrope"] = ("minicpm3", TINY_CONFIGS["minicpm3"] | long)
    twice: dict[str, Any] = {"rope_type": "longrope", "short_mscale": 1.25, "long_mscale": 1.5, **_THETA}
    twice |= {"short_factor": _LONG["short_factor"] * 2, "long_factor": [2.0] * 16}  # type: ignore[operator]
    twice |= {"original_max_position_embeddings": 64}
    found["phimoe-longrope"] = ("phimoe", TINY_CONFIGS["phimoe"] | {"rope_parameters": twice})
    halves: dict[str, Any] = {"rope_interleave": False, "norm_topk_prob": True, **positions}
    found["deepseek_v3-halves"] = ("deepseek_v3", TINY_CONFIGS["deepseek_v3"] | halves)
    found["qwen3-biases"] = ("qwen3", TINY_CONFIGS["qwen3"] | {"attention_bias": True, "tie_word_embeddings": False})
    return found


def fill(weights: dict[str, torch.Tensor]) -> None:
    """Set every weight to values that follow from its name alone."""
    for name, weight in weights.items():
        values = 0.35 * _uniform(zlib.crc32(name.encode()), weight.numel())
        is_norm = weight.ndim == 1 and "norm" in name.replace("ln_", "norm") and name.endswith("weight")
        weight.copy_(torch.from_numpy(values.reshape(weight.shape) + np.float32(is_norm)))


def _uniform(seed: int, num: int) -> npt.NDArray[np.float32]:
    """Values from -1 to 1, of SplitMix64: the same everywhere."""
    state = np.uint64(seed << 32) + np.arange(1, num + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return ((state >> np.uint64(40)).astype(np.float64) / 2**23 - 1).astype(np.float32)


def last_logits(logits: torch.Tensor) -> list[list[float]]:
    """Those of logits (N, V) that are kept, rounded."""
    return [[round(value, 6) for value in row] for row in logits[-NUM_ROWS:, :NUM_COLUMNS].tolist()]


def write_folder(name: str, folder: Path) -> None:
    """A recorded model as transformers 5 writes it, and in config-4.json as transformers 4 does."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    from reader_edge_export.sources.blank_model import built_config
    from reader_edge_export.sources.config.hf_config import hf_config
    from tests.tiny_models import build_tiny_tokenizer

    with no_init_weights():  # which some draw by limits that they have no use for
        model = AutoModelForCausalLM.from_config(built_config(hf_config(RECORDED[name]["config"]), name))
    model.tie_weights()
    with torch.no_grad():
        fill(dict(model.named_parameters()))
    model.save_pretrained(folder)
    build_tiny_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(RECORDED[name]["config"]))
    (folder / "config-4.json").write_text(json.dumps(config_of_4(RECORDED[name]["config"])))


def config_of_4(config: dict[str, Any]) -> dict[str, Any]:
    """A recorded config with its rotary embedding in the keys of transformers 4."""
    older = {key: value for key, value in config.items() if key not in ("rope_parameters", "dtype")}
    older |= {"torch_dtype": config["dtype"], "transformers_version": "4.57.6"}
    given = config.get("rope_parameters", {})
    if config["model_type"] == "gemma4_text":  # which transformers 4 has not
        return older | {"rope_scaling": given}
    scaling = dict(given.get("full_attention", given))
    older |= {key: scaling.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in scaling}
    older |= {"rope_scaling": scaling if scaling.get("rope_type", "default") != "default" else None}
    local = given.get("sliding_attention", {})
    return older | ({"rope_local_base_freq": local["rope_theta"]} if config["model_type"] in _LOCAL_BASES else {})


def main(wanted: Sequence[str]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    import reader_edge_export.sources.muse_glimmer  # noqa: F401  which names its class

    assert set(wanted) <= set(cases()), wanted
    recorded = {}
    for name, (model_type, given) in cases().items():
        if wanted and name not in wanted:
            recorded[name] = RECORDED[name]
            continue
        config = AutoConfig.for_model(model_type, **given)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            fill(dict(model.named_parameters()))
            logits = model(torch.tensor([TOKEN_IDS]), use_cache=False).logits[0]
        written = {
            **json.loads(model.config.to_json_string()),
            "architectures": [type(model).__name__],
            "dtype": "float32",
        }
        recorded[name] = {"config": written, "logits": last_logits(logits)}
    _write(_FILE, recorded)
    written = {name: json.loads(AutoConfig.for_model(name).to_json_string(use_diff=False)) for name in TINY_CONFIGS}
    _write(_DEFAULTS_FILE, written)


def _write(path: Path, recorded: dict[str, Any]) -> None:
    """One line for each name."""
    lines = [f"{json.dumps(name)}: {json.dumps(recorded[name], sort_keys=True)}" for name in recorded]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
