"""GGUF files in Q4_K_M with random blocks, for measuring speed at sizes that cannot be downloaded.

Types are those that llama.cpp's quantiser gives each tensor (src/llama-quant.cpp). Codes are uniform and scales lie
near one size, so that weights have the spread of those of `checkpoint.py`; the two are not the same model.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from transformers import PretrainedConfig

from benchmarks.random_models.checkpoint import outline, tensor_shapes
from reader_edge_export.blocks.block_type import BLOCK_TYPES, BlockType
from reader_edge_export.sources.gguf.vocabulary import TokenKind

UInt8Array = npt.NDArray[np.uint8]

_ARCHITECTURE = gguf.MODEL_ARCH.QWEN2
_LONG_BLOCK = 256  # inputs that K-quants need a multiple of
_SHORT_TYPES = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}  # for rows that are no multiple


def write_gguf(config: PretrainedConfig, out: Path, tokenizer: Path) -> int:
    """Write a file with the tokenizer of a folder. Returns the number of parameters."""
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[_ARCHITECTURE])
    _add_values(writer, config)
    _add_vocabulary(writer, Tokenizer.from_file(str(tokenizer / "tokenizer.json")), config.vocab_size)
    tensors = list(typed_tensors(config))
    for name, shape, kind in tensors:
        stored = gguf.quant_shape_to_byte_shape(shape, kind)
        writer.add_tensor_info(name, stored, np.dtype(np.uint8), math.prod(stored), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.Generator(np.random.SFC64(0))
    for name, shape, kind in tensors:
        writer.write_tensor_data(_random_tensor(name, shape, kind, rng))
    writer.close()
    return sum(math.prod(shape) for _, shape, _ in tensors)


def typed_tensors(config: PretrainedConfig) -> Iterator[tuple[str, tuple[int, ...], gguf.GGMLQuantizationType]]:
    """llama.cpp's name, shape and type of each tensor."""
    names = gguf.get_tensor_name_map(_ARCHITECTURE, config.num_hidden_layers)
    for parameter, shape in tensor_shapes(outline(config)).items():
        name = names.get_name(parameter, (".weight", ".bias"))
        assert name is not None, parameter
        yield name, shape, gguf.GGMLQuantizationType[_type_of(name, shape, config)]


def _type_of(name: str, shape: tuple[int, ...], config: PretrainedConfig) -> str:
    if len(shape) == 1:
        return "F32"
    place = name.split(".")
    is_last = place[0] == "output" or (place[0] == "token_embd" and config.tie_word_embeddings)
    is_sensitive = place[0] == "blk" and place[2] in ("attn_v", "ffn_down")
    is_sensitive = is_sensitive and _has_more_bits(int(place[1]), config.num_hidden_layers)
    kind = "Q6_K" if is_last or is_sensitive else "Q4_K"
    return kind if shape[1] % _LONG_BLOCK == 0 else _SHORT_TYPES[kind]


def _has_more_bits(layer: int, num_layers: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def _random_tensor(
    name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType, rng: np.random.Generator
) -> UInt8Array:
    if kind == gguf.GGMLQuantizationType.F32:
        is_norm = name.endswith("norm.weight")
        values = np.ones(shape) if is_norm else rng.normal(scale=0.02, size=shape)
        return values.astype(np.float32).view(np.uint8)
    return random_blocks(BLOCK_TYPES[kind.name], shape[0], shape[1], rng)


def random_blocks(block_type: BlockType, num_outputs: int, num_inputs: int, rng: np.random.Generator) -> UInt8Array:
    """Rows (J, bytes) of a matrix whose weights are spread evenly about nought, with a deviation of 1 / sqrt(K)."""
    num_units = num_outputs * num_inputs // block_type.unit_inputs
    units = rng.integers(0, 256, (num_units, block_type.unit_bytes), np.uint8)
    ends = np.cumsum(list(block_type.fields.values()))[:-1]
    fields = dict(zip(block_type.fields, np.split(units, ends, axis=1), strict=True))
    if block_type.has_exponents:
        fields["e"][...] = _random_exponents(block_type, num_inputs, num_units, rng)
        return units.reshape(num_outputs, -1)
    integer = 1.0
    if "scales_l" in fields:  # six bits each, of which nought is 32
        integer = math.sqrt(np.mean(np.arange(-32, 32) ** 2))
    elif block_type.has_signed_scales:
        fields["scales"] |= 32
        fields["scales"] &= 63
        integer = math.sqrt(np.mean(np.arange(32, 64) ** 2))
    elif (
        block_type.blocks_per_super_block > 1
    ):  # six bits each, and the same for scales and minima (get_scale_min_k4 there)
        scales = fields["scales"]
        scales[:, 4:8] = scales[:, :4]
        scales[:, 8:] = (scales[:, 8:] & 15) * 17
        integer = math.sqrt(np.mean(np.arange(64) ** 2))
    levels: float = 2**block_type.bits
    if block_type.levels:
        levels = math.sqrt(12 * np.mean((np.array(block_type.levels) - block_type.zero) ** 2))
    step = math.sqrt(12 / num_inputs) / levels / integer * rng.uniform(0.8, 1.2, (num_units, 1))
    fields["d"][...] = step.astype("<f2").view(np.uint8)
    if block_type.has_minima:
        minimum = step * (levels - 1) / 2
        fields["m"][...] = (minimum if block_type.blocks_per_super_block > 1 else -minimum).astype("<f2").view(np.uint8)
    return units.reshape(num_outputs, -1)


def _random_exponents(
    block_type: BlockType, num_inputs: int, num_units: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Of the two powers of two about the right scale, each as often as leaves the weights their deviation."""
    square = 1 / num_inputs / np.mean((np.array(block_type.levels) - block_type.zero) ** 2)
    power = math.floor(math.log2(square) / 2)
    is_larger = rng.random((num_units, 1)) < (square / 4.0**power - 1) / 3
    exponents: npt.NDArray[np.int64] = 128 + power + is_larger
    return exponents


def _add_values(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Of a byte-level tokenizer whose first token ends texts, filled up as converters do."""
    known = tokenizer.get_vocab()
    tokens = sorted(known, key=known.__getitem__)
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    kinds = [TokenKind.CONTROL if token in special else TokenKind.NORMAL for token in tokens]
    fillers = [f"[PAD{token_id}]" for token_id in range(len(tokens), vocab_size)]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + fillers)
    writer.add_token_types([*map(int, kinds), *[int(TokenKind.UNUSED)] * len(fillers)])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(0)
