"""Small GGUF files, written with the library that llama.cpp's converters use."""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from reader_edge_export.blocks.block_type import BLOCK_TYPES, BlockType
from reader_edge_export.sources.gguf.vocabulary import TokenKind
from reader_edge_runtime.arrays import Array

F32 = gguf.GGMLQuantizationType.F32

# A llama of one layer and hidden size 8, of which there is only the header's worth.
SMALL: dict[str, Any] = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 12,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 4,
}
_SMALL_SHAPES = {
    "output_norm": (8,),
    "blk.0.attn_norm": (8,),
    "blk.0.attn_q": (8, 8),
    "blk.0.attn_k": (4, 8),
    "blk.0.attn_v": (4, 8),
    "blk.0.attn_output": (8, 8),
    "blk.0.ffn_norm": (8,),
    "blk.0.ffn_gate": (12, 8),
    "blk.0.ffn_up": (12, 8),
    "blk.0.ffn_down": (8, 12),
}


def write_gguf(
    path: Path,
    architecture: str,
    values: Mapping[str, Any],
    tensors: Mapping[str, Array],
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Write a file. values: by key, of the kinds that Python has; None leaves one out. kinds: of tensors in other
    types than F32; integers stay what they are.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            is_size = type(value) is int and value >= 0  # which converters write without a sign, unlike those in arrays
            kind = gguf.GGUFValueType.UINT32 if is_size else gguf.GGUFValueType.get_type(value)
            writer.add_key_value(key, value, kind)
    for name, tensor in tensors.items():
        tensor_kind = (kinds or {}).get(name, F32)
        if tensor.dtype.kind == "i":
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, _stored(tensor, tensor_kind), raw_dtype=tensor_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def split_gguf(path: Path, max_tensors: int) -> Path:
    """Write a file in parts of so many tensors beside it, and tell the first. The library itself makes them."""
    read = gguf.GGUFReader(path)
    folder = path.parent / f"{path.stem}-parts"
    folder.mkdir()
    architecture = read.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(folder / path.name, architecture, split_max_tensors=max_tensors)
    for key, field in read.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
    for tensor in read.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(folder.iterdir())


def _stored(tensor: Array, kind: gguf.GGMLQuantizationType) -> Array:
    """A tensor in a type; where only llama.cpp can round to it, other values of this shape."""
    try:
        return gguf.quantize(tensor, kind)
    except NotImplementedError:  # the library reads this type and does not write it
        return random_rows(kind, tensor.shape, np.random.default_rng(tensor.size))


def random_rows(kind: gguf.GGMLQuantizationType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Rows (J, bytes) of a matrix (J, K): any codes and integers, and scales that leave weights near 0.1."""
    block_size, type_size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // block_size, type_size)).astype(np.uint8)
    for place in _places(BLOCK_TYPES[kind.name], "e"):
        blocks[..., place] = rng.integers(118, 124, blocks.shape[:2])
    for place in _places(BLOCK_TYPES[kind.name], "d", "m"):
        scale = {"IQ4_NL": 1e-3, "IQ4_XS": 4e-5}.get(kind.name, 2e-4 if kind.name.endswith("_K") else 1e-2)
        halves = rng.normal(scale=scale, size=(*blocks.shape[:2], 1))
        blocks[..., place : place + 2] = halves.astype(np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def _places(block_type: BlockType, *names: str) -> Iterator[int]:
    """Where fields lie in a unit."""
    place = 0
    for field, num_bytes in block_type.fields.items():
        if field in names:
            yield place
        place += num_bytes


def small_tensors(vocab_size: int) -> dict[str, Array]:
    """The weights of the small llama."""
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (vocab_size, 8), **_SMALL_SHAPES}
    return {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_small(
    path: Path,
    vocabulary: Mapping[str, Any],
    values: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
) -> Path:
    """Write the small llama with a vocabulary of `byte_level` or `sentence_piece`.

    values, tensors: added, in place of its own, or, where they are None, left out.
    """
    weights = {**small_tensors(len(vocabulary["tokenizer.ggml.tokens"])), **(tensors or {})}
    kept = {name: weight for name, weight in weights.items() if weight is not None}
    return write_gguf(path, "llama", {**SMALL, **vocabulary, **(values or {})}, kept)


def byte_level(tokenizer: Tokenizer, pre: str, num_tokens: int = 0) -> dict[str, Any]:
    """The values of a byte-level vocabulary, filled up to `num_tokens` as converters do.

    tokenizer: where its tokens, special tokens and merges come from.
    """
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    kinds = [
        (TokenKind.CONTROL if added[token].special else TokenKind.USER_DEFINED) if token in added else TokenKind.NORMAL
        for token in tokens
    ]
    padding = range(len(tokens), num_tokens)
    tokens += [f"[PAD{token_id}]" for token_id in padding]
    kinds += [TokenKind.UNUSED for _ in padding]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
    }


def small_vocabulary() -> dict[str, Any]:
    """One token a byte, two merges, and one special token."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "\u0120he"]
    model = models.BPE({token: token_id for token_id, token in enumerate(tokens)}, [("h", "e"), ("\u0120", "he")])
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["<end>"])
    return byte_level(tokenizer, "gpt-2")


def sentence_piece(pieces: Mapping[str, float], added: Mapping[str, TokenKind]) -> dict[str, Any]:
    """The values of a SentencePiece vocabulary. pieces: normal ones and their scores. added: tokens behind them."""
    kinds = {
        "<unk>": TokenKind.UNKNOWN,
        "<s>": TokenKind.CONTROL,
        "</s>": TokenKind.CONTROL,
        **{f"<0x{byte:02X}>": TokenKind.BYTE for byte in range(256)},
        **dict.fromkeys(pieces, TokenKind.NORMAL),
        **added,
    }
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(kinds),
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds.values()],
        "tokenizer.ggml.scores": [float(pieces.get(token, 0.0)) for token in kinds],
    }


def text_bytes(text: str | bytes) -> bytes:
    """A text as the format has it."""
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded


def raw_gguf(
    values: Sequence[tuple[str | bytes, int, bytes]] = (),
    tensors: Sequence[tuple[str, Sequence[int], int, int]] = (),
    data: bytes = b"",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A file byte by byte, also one that cannot be.

    values: (key, value type, bytes). tensors: (name, sizes as the format orders them, type, offset). counts: of tensors
    and values, where they lie.
    """
    num_tensors, num_values = counts or (len(tensors), len(values))
    header = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_values)
    for key, kind, content in values:
        header += text_bytes(key) + struct.pack("<I", kind) + content
    for name, sizes, kind, offset in tensors:
        header += text_bytes(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
    return header + bytes(-len(header) % 32) + data
