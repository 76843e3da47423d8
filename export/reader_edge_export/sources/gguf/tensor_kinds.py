"""The types of tensors in GGUF files, most as the library gguf has them, and the values of their blocks."""

from dataclasses import dataclass

import gguf
import numpy as np

from reader_edge_runtime.arrays import Float32Array, UInt8Array
from reader_edge_runtime.untrusted.gguf_header import GgufTensor


@dataclass(frozen=True, slots=True)
class NewerType:
    """One that llama.cpp has and the library does not know yet. block_size, type_size: a block's values and bytes."""

    name: str
    block_size: int
    type_size: int


Kind = gguf.GGMLQuantizationType | NewerType
Tensor = GgufTensor[Kind]
_NEWER = {42: NewerType("Q2_0", 64, 18)}
# By the file's numbers: a type, the values of a block, and its bytes.
KINDS: dict[int, tuple[Kind, int, int]] = {
    **{number: (kind, kind.block_size, kind.type_size) for number, kind in _NEWER.items()},
    **{int(kind): (kind, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()},
}
# What codes of types stand for whose values the library does not know; of Q2_0 the last is in no file of three values.
_OWN_LEVELS = {"Q1_0": (-1, 1), "Q2_0": (-1, 0, 1, 2)}


def is_dequantizable(kind: Kind) -> bool:
    """Whether the values of a type are known."""
    type_size = kind.type_size if isinstance(kind, NewerType) else gguf.GGML_QUANT_SIZES[kind][1]
    try:
        dequantized(np.zeros((1, type_size), np.uint8), kind)
    except NotImplementedError:  # what the library says of a type that it does not know
        return False
    return True


def dequantized(rows: UInt8Array, kind: Kind) -> Float32Array:
    """(rows, values) of rows of blocks."""
    with np.errstate(all="ignore"):  # hostile scales may be infinite
        if kind.name in _OWN_LEVELS or isinstance(kind, NewerType):
            return _of_levels(rows, _OWN_LEVELS[kind.name])
        values: Float32Array = gguf.dequantize(rows, kind)
    return values


def _of_levels(rows: UInt8Array, levels: tuple[int, ...]) -> Float32Array:
    """Blocks of 16 bytes of codes, lowest bits first, behind a scale in fp16.

    Source: `dequantize_row_q1_0` and `dequantize_row_q2_0` of llama.cpp.
    """
    blocks, bits = rows.reshape(-1, 18), len(levels) // 2
    scales = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    codes = blocks[:, 2:, np.newaxis] >> np.arange(0, 8, bits, dtype=np.uint8) & 2**bits - 1
    values: Float32Array = np.array(levels, np.float32)[codes].reshape(len(blocks), -1) * scales
    return values.reshape(len(rows), -1)
