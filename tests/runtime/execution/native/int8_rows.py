"""Rows of a KV cache of eight bits in numpy: a reference for operators, and rows for their tests."""

import numpy as np
import numpy.typing as npt

from reader_edge_export.quantize.hadamard import block_size, hadamard
from reader_edge_runtime.arrays import Float32Array


def rotated_key(key: Float32Array) -> Float32Array:
    """key (..., D) with the exporter's signs, times its matrix."""
    size = key.shape[-1]
    signs = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), size)
    block = block_size(size)
    blocks = (key * signs).reshape(*key.shape[:-1], -1, block) @ hadamard(block)
    rotation: Float32Array = blocks.reshape(key.shape).astype(np.float32)
    return rotation


def rounded_rows(rows: Float32Array) -> npt.NDArray[np.int8]:
    """rows (..., D) -> (..., D + 2)."""
    top = np.maximum(np.abs(rows).max(axis=-1, keepdims=True), 1e-30).astype(np.float64)
    exponent = np.clip(np.floor(np.log2(top)), -100, 100)
    parts = np.minimum(np.ceil(top / 2**exponent * 64), 128)
    steps = np.rint(np.clip(rows * (127 * 64 / (parts * 2**exponent)), -127, 127))
    return np.concatenate([steps, parts - 192, exponent], axis=-1).astype(np.int8)


def read_rows(rows: npt.NDArray[np.int8]) -> Float32Array:
    """rows (..., D + 2) -> (..., D)."""
    wide = rows.astype(np.float64)
    numbers = wide[..., :-2] * (wide[..., -2:-1] + 192) / (127 * 64) * 2 ** wide[..., -1:]
    return numbers.astype(np.float32)
