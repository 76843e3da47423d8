"""Record what dflash 0.1.0 and DeepSpec compute with weights that follow from their names.

Run by hand, where PyPI's dflash 0.1.0 is installed beside the tests' packages; DEEPSPEC: a checkout of
github.com/deepseek-ai/DeepSpec: PYTHONPATH=$PYTHONPATH:DEEPSPEC python -m tests.export.speculators.record_blocks
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch

from tests.export.record_transformers5 import fill, last_logits

FILE = Path(__file__).parents[2] / "data" / "block_speculators.json"
NUM_CONTEXT, NUM_TOKENS, STATE_SIZE, MASK = 40, 100, 64, 99
_LAYER: dict[str, Any] = {
    **{"model_type": "qwen3", "hidden_size": STATE_SIZE, "intermediate_size": 96, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "rms_norm_eps": 1e-5},
    **{"max_position_embeddings": 512, "vocab_size": NUM_TOKENS, "num_target_layers": 8, "attention_bias": False},
}
_NEW = _LAYER | {
    "architectures": ["DFlashDraftModel"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "dflash_config": {"block_size": 6, "mask_token_id": MASK, "target_layer_ids": [1, 3]},
}
_WINDOWS = _NEW | {
    **{"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
_SECOND = {"conv_kernel_size": 3, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4}
_SCALES = {"input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 2.0}
CASES: dict[str, dict[str, Any]] = {  # config.json, as makers write it
    "dflash, old": _LAYER
    | {"rope_theta": 5000.0, "block_size": 5, "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3]}},
    "dflash, supposed layers": _NEW | {"dflash_config": {"block_size": 6, "mask_token_id": MASK}},
    "dflash, windows": _WINDOWS,
    "dflash, windows both ways": _WINDOWS | {"is_causal": False},
    "dflash, causal": _NEW | {"is_causal": True},
    "dflash2": _NEW
    | {"architectures": ["DFlash2DraftModel"], "dflash_config": _NEW["dflash_config"] | _SECOND | _SCALES},
    "dspark": _LAYER
    | {"architectures": ["Qwen3DSparkModel"], "rope_theta": 5000.0, "tie_word_embeddings": False, "num_anchors": 4}
    | {"block_size": 7, "mask_token_id": MASK, "target_layer_ids": [1, 3], "layer_types": ["full_attention"] * 3}
    | {"enable_confidence_head": True, "confidence_head_with_markov": True}
    | {"markov_rank": 8, "markov_head_type": "vanilla"},
}


def inputs(block_size: int, num_states: int) -> dict[str, torch.Tensor]:
    """input_ids (1, B), position_ids (1, NUM_CONTEXT + B), states (1, NUM_CONTEXT, J * STATE_SIZE)."""
    states = {"states": torch.empty(1, NUM_CONTEXT, num_states * STATE_SIZE)}
    fill(states)
    positions = torch.arange(NUM_CONTEXT + block_size)[None]
    return {"input_ids": torch.tensor([[7, *[MASK] * (block_size - 1)]]), "position_ids": positions, **states}


def _filled(model: Any) -> Any:
    with torch.no_grad():
        fill(dict(model.named_parameters()))
    return model.eval()


def _record_dflash(config: dict[str, Any]) -> dict[str, Any]:
    from dflash.model import DFlash2DraftModel, DFlashDraftModel
    from transformers import Qwen3Config

    is_second = config.get("architectures") == ["DFlash2DraftModel"]
    built = Qwen3Config(**config)
    built._attn_implementation = "sdpa"
    model = _filled((DFlash2DraftModel if is_second else DFlashDraftModel)(built).float())
    size = NUM_TOKENS, STATE_SIZE
    shared = {name: torch.empty(size) for name in ("embed_tokens.weight", "lm_head.weight")}
    fill(shared)
    given = inputs(model.block_size, len(model.target_layer_ids))
    scale = config["dflash_config"].get("input_embedding_scale", 1.0)
    rows = shared["embed_tokens.weight"][given["input_ids"]] * scale
    head = torch.nn.Linear(STATE_SIZE, NUM_TOKENS, bias=False)
    head.weight.data.copy_(shared["lm_head.weight"])
    with torch.no_grad():
        read = model(position_ids=given["position_ids"], noise_embedding=rows, target_hidden=given["states"])
        logits = model.compute_logits(read, head)
        recorded = {"layer_ids": model.target_layer_ids, "read": last_logits(read[0]), "logits": last_logits(logits[0])}
        if is_second:
            recorded["chosen"] = model.propose(read[:, 1:], given["input_ids"][:, 0], head, 0.0)[0][0].tolist()
    return recorded


def _record_dspark(config: dict[str, Any]) -> dict[str, Any]:
    from deepspec.modeling.dspark.qwen3.modeling import Qwen3DSparkModel
    from transformers import Qwen3Config

    built = Qwen3Config(**config)
    built._attn_implementation = "eager"
    model = _filled(Qwen3DSparkModel(built).float())
    given = inputs(model.block_size, len(model.target_layer_ids))
    with torch.no_grad():
        read = model._forward_backbone(
            position_ids=given["position_ids"],
            noise_embedding=model.embed_tokens(given["input_ids"]),
            target_hidden_states=given["states"],
        )
        chosen, _ = model.sample_draft_tokens(
            model.compute_logits(read), first_prev_token_ids=given["input_ids"][:, 0], hidden_states=read
        )
    return {
        "layer_ids": model.target_layer_ids,
        "read": last_logits(read[0]),
        "logits": last_logits(model.compute_logits(read)[0]),
        "chosen": chosen[0].tolist(),
    }


def main() -> None:
    for name in ("wandb", "prettytable"):
        sys.modules.setdefault(name, MagicMock())
    recorded = {name: (_record_dspark if name == "dspark" else _record_dflash)(each) for name, each in CASES.items()}
    FILE.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
