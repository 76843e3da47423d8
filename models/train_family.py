"""Trains a small model of another family on the demo's corpora, so that proofs on it meet drafts that are accepted.

    python -m models.train_family FAMILY OUT --corpora CORPORA [--steps 600] [--rows 4]

The tokenizer is the demo's. What comes out is a Hugging Face checkpoint in bf16, made again by the same command up to
the rounding of the machine's kernels; none is kept in the repository.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from models.bpe import END_OF_TEXT_ID, save_tokenizer
from models.checkpoint import MAX_POSITIONS, VOCAB_SIZE
from models.corpus import split_documents, training_rows
from models.train_demo import PHASES, SEED, encode

ROW_LENGTH = 512
PEAK_RATE = 1.5e-3
LOG_EVERY = 20

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": None,
    "eos_token_id": END_OF_TEXT_ID,
    "pad_token_id": None,
}
_MLP: dict[str, Any] = {"intermediate_size": 768}
_QWEN3_5: dict[str, Any] = {
    "head_dim": 64,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]},
}
_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
_LEARNING: dict[str, Any] = {"output_router_logits": True, "router_aux_loss_coef": 0.01}
CONFIGS: dict[str, dict[str, Any]] = {
    "lfm2": {
        **_MLP,
        "layer_types": ["conv", "conv", "conv", "full_attention"],
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": 3,
    },
    "qwen3_5_text": {**_QWEN3_5, **_MLP},
    "granitemoehybrid": {
        **_MLP,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 768,
        "mamba_n_heads": 8,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 32,
        "attention_multiplier": 0.125,
    },
    "granitemoehybrid_experts": {
        "model_type": "granitemoehybrid",
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 256,
        "shared_intermediate_size": 256,
        "mamba_n_heads": 8,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 32,
        "attention_multiplier": 0.125,
        **_LEARNING,
    },
    "falcon_h1": {
        **_MLP,
        "head_dim": 64,
        "mamba_d_ssm": 512,
        "mamba_n_heads": 8,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 32,
        "mamba_chunk_size": 64,
        "embedding_multiplier": 4.0,
        "key_multiplier": 0.5,
        "ssm_out_multiplier": 0.5,
        "ssm_multipliers": [0.5, 0.75, 0.5, 1.25, 0.75],
        "mlp_multipliers": [0.9, 0.6],
    },
    "qwen3_moe": {"head_dim": 64, "norm_topk_prob": True, **_EXPERTS, **_LEARNING},
    "qwen3_5_moe_text": {**_QWEN3_5, "shared_expert_intermediate_size": 256, **_EXPERTS, **_LEARNING},
    "gpt_oss": {
        "head_dim": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 256,
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
        **_LEARNING,
    },
    "gemma4_text": {
        **_MLP,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "sliding_window": 128,
        "head_dim": 64,
        "global_head_dim": 128,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 256,
    },
}


def new_model(family: str) -> PreTrainedModel:
    """A fresh model with initial weights as the library draws them."""
    torch.manual_seed(SEED)
    config = AutoConfig.for_model(**{"model_type": family} | _SIZES | CONFIGS[family])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def train(
    model: PreTrainedModel, documents: list[np.ndarray[Any, np.dtype[np.int32]]], steps: int, rows_a_step: int
) -> None:
    """AdamW over rows of the documents, the rate rising for a twentieth of the steps and falling to nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    rows = training_rows(documents, ROW_LENGTH, np.random.default_rng(SEED))
    warmup, started = max(1, steps // 20), time.monotonic()
    for step in range(steps):
        rate = PEAK_RATE * min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = torch.from_numpy(np.stack(list(itertools.islice(rows, rows_a_step))).astype(np.int64))
        output = model(input_ids=batch[:, :-1], use_cache=False)
        loss = cross_entropy(output.logits.float().flatten(0, 1), batch[:, 1:].flatten())
        torch.autograd.backward(loss + _unevenness(model, output))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % LOG_EVERY == 0:
            speed = (step + 1) * ROW_LENGTH * rows_a_step / (time.monotonic() - started)
            print(f"{step + 1}/{steps} loss {loss.item():.3f} {speed:.0f} tokens/s", flush=True)


def _unevenness(model: PreTrainedModel, output: Any) -> torch.Tensor | float:
    """What a mixture's loss has besides: the more, the fewer experts its tokens go through."""
    return model.config.router_aux_loss_coef * output.aux_loss if "aux_loss" in output else 0.0


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=CONFIGS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--corpora", type=Path, required=True, help="folder of NAME.txt.xz")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rows", type=int, default=4, help="rows a step: fewer learn sooner, and less in the end")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(Path(__file__).parent / "demo" / "checkpoint" / "tokenizer.json"))
    documents = PHASES[1].select(encode(tokenizer, split_documents(arguments.corpora)[0]))
    model = new_model(arguments.family)
    train(model, documents, arguments.steps, arguments.rows)
    model.generation_config = GenerationConfig(eos_token_id=END_OF_TEXT_ID)
    model.bfloat16().save_pretrained(arguments.out)
    save_tokenizer(tokenizer, arguments.out, MAX_POSITIONS)


if __name__ == "__main__":
    main()
