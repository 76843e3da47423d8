"""The demo model's architecture and its Hugging Face checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from models.bpe import END_OF_TEXT_ID, save_tokenizer

VOCAB_SIZE = 6144
MAX_POSITIONS = 2048


def model_config() -> LlamaConfig:
    """A Llama of 7.9 million parameters."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=768,
        tie_word_embeddings=True,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=None,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=None,
    )


def new_model() -> LlamaForCausalLM:
    """A fresh model.

    Two departures from the library's initial weights, without which the loss stalled for the
    first hundreds of steps: embeddings of about unit length, so that a token's identity is not
    drowned by what the first layers add to it, and small output projections of every block.
    """
    model = LlamaForCausalLM(model_config())
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(3.0)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.25)
            layer.mlp.down_proj.weight.mul_(0.25)
    return model


def save_checkpoint(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes weights in bfloat16, configuration and tokenizer, replacing an older checkpoint.

    Everything is written beside ``folder`` first, so that a reader never sees half of it.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    generation = GenerationConfig(eos_token_id=END_OF_TEXT_ID)
    copy.generation_config = generation
    copy.bfloat16()
    copy.save_pretrained(partial)
    save_tokenizer(tokenizer, partial, MAX_POSITIONS)
    (partial / "model.safetensors").chmod(0o644)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
