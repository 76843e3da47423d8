"""Record what the `speculators` package computes with weights that follow from their names.

Run by hand, in an environment of its own: Python 3.11 with speculators 0.9.0, transformers 5.19 and PyTorch; packages
that it imports and this does not need may be missing: python -m tests.export.speculators.record_speculators
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch

from tests.export.record_transformers5 import fill, last_logits
from tests.tiny_models import MAX_CONTEXT, VOCAB_SIZE, tiny_config

FILE = Path(__file__).parents[2] / "data" / "speculators.json"
DRAFT_VOCAB_SIZE, NUM_STATES, NUM_NODES, NUM_STEPS = 100, 3, 12, 3
_NOT_NEEDED = ("datasets", "hs_connectors", "huggingface_hub.errors", "openai", "httpx", "setproctitle")
_LAYER = {
    **{"vocab_size": VOCAB_SIZE, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 1, "head_dim": 16},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 128},
    "rope_parameters": {"rope_type": "default", "rope_theta": 300000.0},
}

Case = tuple[str, dict[str, Any], dict[str, bool]]  # model type and config of the layers, switches
_TRAINED_LAYER = {
    **{"hidden_act": "silu", "attention_bias": False, "rope_theta": 10000.0, "tie_word_embeddings": False},
    **{"rms_norm_eps": 1e-6, "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 128},
    **{"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    "max_position_embeddings": MAX_CONTEXT,
}


def _trained(
    format_name: str, model_type: str, architecture: str, own: dict[str, Any], layer: dict[str, Any] = _TRAINED_LAYER
) -> dict[str, Any]:
    """config.json of what `train-drafter` has trained for the tiny Llama."""
    return {
        **own,
        "speculators_model_type": format_name,
        "speculators_version": "0.3.0",
        "torch_dtype": "float32",
        "transformer_layer_config": {"model_type": model_type, "architectures": [architecture], **layer},
        "speculators_config": {
            "algorithm": format_name,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "llama"},
        },
    }


_EAGLE3_KEYS = {
    **{"architectures": ["Eagle3Speculator"], "draft_vocab_size": DRAFT_VOCAB_SIZE, "target_hidden_size": 64},
    **{"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "norm_before_residual": False},
}
_MLP_KEYS = {"architectures": ["MLPSpeculator"], "draft_vocab_size": DRAFT_VOCAB_SIZE}
_MTP_KEYS = {"architectures": ["MTPDraftModel"], "num_nextn_predict_layers": 1}
_DFLASH_KEYS = {
    **{"architectures": ["DFlashDraftModel"], "block_size": 5, "mask_token_id": 1},
    **{"draft_vocab_size": DRAFT_VOCAB_SIZE, "target_hidden_size": 64, "aux_hidden_state_layer_ids": [0, 1, 2]},
}
TRAINED: dict[str, dict[str, Any]] = {
    "mlp": _trained("mlp", "llama", "LlamaForCausalLM", _MLP_KEYS, _TRAINED_LAYER | {"intermediate_size": 512}),
    "eagle3": _trained("eagle3", "llama", "LlamaForCausalLM", _EAGLE3_KEYS),
    "mtp": _trained("mtp", "qwen3", "Qwen3ForCausalLM", _MTP_KEYS),
    "dflash": _trained("dflash", "qwen3", "Qwen3ForCausalLM", _DFLASH_KEYS, _TRAINED_LAYER | {"num_hidden_layers": 2}),
}
EAGLE3: dict[str, Case] = {
    "trained": ("llama", _TRAINED_LAYER, {}),
    "llama": ("llama", _LAYER, {}),
    "llama, normed residual": ("llama", _LAYER | {"attention_bias": True}, {"norm_before_residual": True}),
    "llama, one norm": ("llama", _LAYER | {"num_hidden_layers": 2}, {"norm_before_fc": True}),
    "qwen3, a norm of each": ("qwen3", _LAYER, {"fc_norm": True, "norm_output": True}),
}
MTP: dict[str, dict[str, Any]] = {  # configs of layers
    **{model_type: tiny_config(model_type) for model_type in ("qwen3", "qwen3_5_text", "qwen3_5_moe_text")},
    "trained": TRAINED["mtp"]["transformer_layer_config"],
}


def inputs(size: int) -> dict[str, torch.Tensor]:
    """input_ids (1, NUM_NODES + NUM_STEPS) and states (1, NUM_NODES + NUM_STEPS, size)."""
    num_tokens = NUM_NODES + NUM_STEPS
    states = {"inputs.states": torch.empty(1, num_tokens, size)}
    fill(states)
    token_ids = [3 + 37 * i * i % 310 for i in range(num_tokens)]
    return {"input_ids": torch.tensor([token_ids]), "states": states["inputs.states"]}


def _record_eagle3(name: str) -> list[dict[str, Any]]:
    """Read as a folder's config.json is."""
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel

    model_type, layer, switches = EAGLE3[name]
    settings = {"transformer_layer_config": {"model_type": model_type, **layer}, **switches}
    if name != "trained":
        settings["target_hidden_size"] = None
    config = Eagle3SpeculatorConfig(**TRAINED["eagle3"] | settings)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(config)
    # Only the last NUM_STEPS nodes run out of tokens at later steps, and those are not compared.
    given = inputs(NUM_STATES * layer["hidden_size"])
    return _recorded(
        model,
        model.layers[-1],
        model.norm if switches.get("norm_output") else None,
        lambda: model(
            hidden_states=given["states"],
            input_ids=given["input_ids"],
            document_ids=torch.zeros_like(given["input_ids"]),
            ttt_steps=NUM_STEPS,
        ),
        NUM_NODES,
    )


def _record_mtp(name: str) -> list[dict[str, Any]]:
    """Read as a folder's config.json is, for as many steps as are recorded."""
    from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig

    steps = {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": NUM_STEPS}]}
    beside = {"speculators_config": TRAINED["mtp"]["speculators_config"] | steps}
    config = MTPSpeculatorConfig(**TRAINED["mtp"] | {"transformer_layer_config": dict(MTP[name])} | beside)
    layer = config.transformer_layer_config
    layer._attn_implementation = layer._experts_implementation = "eager"
    model = MTPDraftModel(config)
    given = inputs(layer.hidden_size)
    run = lambda: model(input_ids=given["input_ids"], hidden_states=given["states"])  # noqa: E731
    return _recorded(model, model.mtp_layers[0], None, run, NUM_NODES)


def _recorded(model: Any, layer: Any, norm: Any, run: Any, num_nodes: int) -> list[dict[str, Any]]:
    """Of each step, logits and next states of some of the first nodes."""
    with torch.no_grad():
        fill(dict(model.named_parameters()))
    logits: list[torch.Tensor] = []
    states: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, given, output: logits.append(output))
    (norm or layer).register_forward_hook(lambda module, given, output: states.append(output))
    with torch.no_grad():
        run()
    pairs = zip(logits, states, strict=True)
    return [
        {"logits": last_logits(one[0, :num_nodes]), "next_states": last_logits(other[0, :num_nodes])}
        for one, other in pairs
    ]


def main() -> None:
    for name in _NOT_NEEDED:
        if name.partition(".")[0] not in sys.modules and find_spec(name.partition(".")[0]) is None:
            sys.modules[name] = MagicMock()
    recorded = {f"eagle3, {name}": _record_eagle3(name) for name in EAGLE3}
    recorded |= {f"mtp, {name}": _record_mtp(name) for name in MTP}
    FILE.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
