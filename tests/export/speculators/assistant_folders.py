"""Folders of Gemma 4's assistants with random weights, as their makers write them."""

from pathlib import Path
from typing import Any

import torch

from reader_edge_export.sources.find import find_source
from reader_edge_export.speculators.formats.assistants import open_assistant
from reader_edge_export.speculators.formats.find import find_speculator
from reader_edge_export.speculators.formats.open_speculator import OpenSpeculator
from tests.export.speculators.speculator_folders import HIDDEN_SIZE, write
from tests.tiny_models import VOCAB_SIZE

NUM_CENTROIDS, NUM_CHOSEN = 16, 4
SIZE, NUM_HEADS, HEAD_DIM, FULL_HEAD_DIM = 32, 4, 16, 32  # its own, and those of the target's heads
TEXT_CONFIG: dict[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": SIZE,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "global_head_dim": FULL_HEAD_DIM,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "num_kv_shared_layers": 4,
    "sliding_window": 5,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}


def write_assistant(folder: Path, is_ordered: bool = True) -> dict[str, torch.Tensor]:
    """For the tiny model of Gemma 4. is_ordered: with centroids. Returns the tensors."""
    config = {
        "model_type": "gemma4_assistant",
        "architectures": ["Gemma4AssistantForCausalLM"],
        "backbone_hidden_size": HIDDEN_SIZE,
        "use_ordered_embeddings": is_ordered,
        "num_centroids": NUM_CENTROIDS,
        "centroid_intermediate_top_k": NUM_CHOSEN,
        "tie_word_embeddings": True,
        "text_config": TEXT_CONFIG,
    }
    tensors = tensors_of(is_ordered)
    write(folder, config, tensors)
    return tensors


def tensors_of(is_ordered: bool) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)

    def drawn(*sizes: int) -> torch.Tensor:
        return 0.3 * torch.randn(sizes, generator=random) + (1.0 if len(sizes) == 1 else 0.0)

    tensors = {
        "model.embed_tokens.weight": drawn(VOCAB_SIZE, SIZE),
        "model.norm.weight": drawn(SIZE),
        "pre_projection.weight": drawn(SIZE, 2 * HIDDEN_SIZE),
        "post_projection.weight": drawn(HIDDEN_SIZE, SIZE),
    }
    for number, kind in enumerate(TEXT_CONFIG["layer_types"]):
        head_dim = FULL_HEAD_DIM if kind == "full_attention" else HEAD_DIM
        sizes: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (NUM_HEADS * head_dim, SIZE),
            "self_attn.q_norm": (head_dim,),
            "self_attn.o_proj": (SIZE, NUM_HEADS * head_dim),
            "mlp.gate_proj": (48, SIZE),
            "mlp.up_proj": (48, SIZE),
            "mlp.down_proj": (SIZE, 48),
            **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (SIZE,)),
            **dict.fromkeys(("pre_feedforward_layernorm", "post_feedforward_layernorm"), (SIZE,)),
        }
        tensors |= {f"model.layers.{number}.{name}.weight": drawn(*each) for name, each in sizes.items()}
        tensors[f"model.layers.{number}.self_attn.q_norm.weight"] *= 0.4  # nothing else scales its scores
        tensors[f"model.layers.{number}.layer_scalar"] = drawn(1)
    if is_ordered:
        tensors["masked_embedding.centroids.weight"] = drawn(NUM_CENTROIDS, SIZE)
        tensors["masked_embedding.token_ordering"] = torch.randperm(VOCAB_SIZE, generator=random)
    return tensors


def opened_assistant(folder: Path, target: Path) -> OpenSpeculator:
    """Of a folder, beside a model's."""
    source = find_source(target, None)
    return open_assistant(find_speculator(folder, source), source)
