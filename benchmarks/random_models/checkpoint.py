"""Hugging Face models of known shapes with random weights, to measure speed at sizes that need no download.

Weights are in bf16, in shards like those of published models. Their scale leaves activations their size through any
number of layers, so that every precision can be tried on them; their answers mean nothing.
"""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma4TextConfig,
    GptOssConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
)

TensorShapes = dict[str, tuple[int, ...]]

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo" / "checkpoint"
SHARD_BYTES = 5 * 10**9  # transformers' own limit
CHUNK_VALUES = 1 << 22  # drawn and written at once


def qwen2(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, **others: Any) -> Qwen2Config:
    """A config of Qwen2.5."""
    values: dict[str, Any] = {"vocab_size": 151936, "tie_word_embeddings": True} | others
    return Qwen2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        rms_norm_eps=1e-6,
        **values,
    )


def qwen3_5(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, **others: Any) -> Qwen3_5TextConfig:
    """A config of Qwen 3.5: three gated delta layers to one of attention."""
    values: dict[str, Any] = {"vocab_size": 248320, "tie_word_embeddings": True, "linear_num_value_heads": 16} | others
    return Qwen3_5TextConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        **values,
    )


def gemma4(hidden: int, layers: int, shared: int, kv_heads: int, intermediate: int, period: int) -> Gemma4TextConfig:
    """A config of Gemma 4's small models: each so many-th layer sees all tokens, the last share keys and values."""
    return Gemma4TextConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        num_kv_shared_layers=shared,
        use_double_wide_mlp=True,
        final_logit_softcapping=30.0,
        layer_types=["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)],
    )


def qwen3_30b_a3b(layers: int) -> Qwen3MoeConfig:
    """The config of Qwen 3's mixture of 128 experts, with fewer of its 48 layers."""
    others: dict[str, Any] = {"head_dim": 128}  # which its class does not declare
    return Qwen3MoeConfig(
        hidden_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        vocab_size=151936,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        **others,
    )


def gpt_oss_20b(layers: int) -> GptOssConfig:
    """The config of gpt-oss 20b, a mixture of 32 experts, with fewer of its 24 layers."""
    return GptOssConfig(num_hidden_layers=layers, num_local_experts=32)


SHAPES: dict[str, PretrainedConfig] = {
    "qwen2.5-0.5b": qwen2(896, 24, 14, 2, 4864),
    "qwen2.5-1.5b": qwen2(1536, 28, 12, 2, 8960),
    "qwen2.5-3b": qwen2(2048, 36, 16, 2, 11008),
    "qwen2.5-7b": qwen2(3584, 28, 28, 4, 18944, vocab_size=152064, tie_word_embeddings=False),
    "qwen3.5-0.8b": qwen3_5(1024, 24, 8, 2, 3584),
    "gemma4-e2b": gemma4(1536, 35, 20, 1, 6144, 5),
    "qwen3-30b-a3b-2-layers": qwen3_30b_a3b(2),
    "gpt-oss-20b-2-layers": gpt_oss_20b(2),
    "smollm2-135m": LlamaConfig(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    ),
}


def write_checkpoint(config: PretrainedConfig, out: Path, tokenizer: Path, shard_bytes: int = SHARD_BYTES) -> int:
    """Write config, weights and tokenizer into a new folder. Returns the number of parameters."""
    out.mkdir(parents=True)
    model = outline(config)
    shapes = tensor_shapes(model)
    shards = list(sharded(shapes, shard_bytes))
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    files = dict(zip(names if len(shards) > 1 else ["model.safetensors"], shards, strict=True))
    rng = np.random.Generator(np.random.SFC64(0))
    for name, shard in files.items():
        write_shard(out / name, shard, rng)
    num_parameters = sum(map(math.prod, shapes.values()))
    if len(files) > 1:
        places = {tensor: name for name, shard in files.items() for tensor in shard}
        index = {"metadata": {"total_size": 2 * num_parameters}, "weight_map": places}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(out)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, out / file)
    return num_parameters


def outline(config: PretrainedConfig) -> PreTrainedModel:
    """A model in bf16 that has names and shapes, and no memory."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model


def tensor_shapes(model: PreTrainedModel) -> TensorShapes:
    """Of a model's parameters, and of the scalars of its layers, by their names, tied ones once."""
    scalars = ((name, buffer) for name, buffer in model.named_buffers() if name.endswith("layer_scalar"))
    return {name: tuple(values.shape) for name, values in (*model.named_parameters(), *scalars)}


def sharded(shapes: TensorShapes, shard_bytes: int) -> Iterator[TensorShapes]:
    """Tensors in order, in shards of at most so many bytes or of one tensor."""
    shard: TensorShapes = {}
    size = 0
    for name, shape in shapes.items():
        if shard and size + 2 * math.prod(shape) > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = shape
        size += 2 * math.prod(shape)
    yield shard


def write_shard(path: Path, shapes: TensorShapes, rng: np.random.Generator) -> None:
    """A safetensors file: the length of its header, the header in JSON, the tensors' bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            for values in random_chunks(name, shape, rng):
                file.write(values.astype(ml_dtypes.bfloat16).tobytes())


def random_chunks(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[npt.NDArray[np.float32]]:
    """Values of a tensor, in fp32: ones for norms; else normal, scaled to leave activations their size."""
    scale = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.02
    for start in range(0, math.prod(shape), CHUNK_VALUES):
        size = min(CHUNK_VALUES, math.prod(shape) - start)
        if name.endswith(("norm.weight", "layer_scalar")):
            yield np.ones(size, np.float32)
        else:
            yield rng.standard_normal(size, np.float32) * np.float32(scale)
