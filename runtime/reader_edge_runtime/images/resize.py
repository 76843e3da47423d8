"""Resizing of 8-bit images in numpy alone, with the bits of torch's antialiased CPU kernels, which torchvision calls.

Filters are cut off and normalised in double precision, then rounded to 16-bit integers with as many fractional bits as
the largest weight allows (`upsample_avx_bilinear_bicubic_uint8` in ATen, which has it from Pillow). The horizontal pass
comes first, and values between the two passes are 8-bit again. Pillow's own bits are others, and differ by its version.
"""

import math
from collections.abc import Callable

import numpy as np

from reader_edge_runtime.arrays import Float64Array, Int32Array, Int64Array, UInt8Array

_BLOCK_ROWS = 1024  # that are turned and filtered at a time: sums of a column's pixels stay in a processor's cache


def _triangle(x: Float64Array) -> Float64Array:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _cubic(x: Float64Array) -> Float64Array:
    """Keys' kernel with a = -0.5."""
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((x - 5.0) * x + 8.0) * x * -0.5 + 2.0
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _lanczos(x: Float64Array) -> Float64Array:
    return np.where(np.abs(x) < 3.0, np.sinc(x) * np.sinc(x / 3.0), 0.0)


_FILTERS: dict[str, tuple[Callable[[Float64Array], Float64Array], int]] = {
    "bilinear": (_triangle, 2),
    "bicubic": (_cubic, 4),
    "lanczos": (_lanczos, 6),
}  # with their widths


def filter_weights(num_in: int, num_out: int, name: str) -> tuple[Int64Array, Float64Array]:
    """Of each output (O of them) the first input that it reads (O,), and the weights of those from there on (O, K).

    Weights of an output add up to 1, those of inputs that it does not read are 0.
    """
    function, width = _FILTERS[name]
    scale = num_in / num_out
    support = width * 0.5 * max(scale, 1.0)
    centers = scale * (np.arange(num_out) + 0.5)
    first = np.maximum((centers - support + 0.5).astype(np.int64), 0)  # towards zero, as a cast in C
    taps = np.arange(math.ceil(support) * 2 + 1)
    sizes = np.minimum((centers + support + 0.5).astype(np.int64), num_in) - first
    values = function((taps + first[:, None] - centers[:, None] + 0.5) * (1.0 / max(scale, 1.0)))
    values = np.where(taps < sizes[:, None], values, 0.0)
    totals = np.zeros(num_out)
    for tap in taps:  # one by one, since the order of a sum shows in its last bit
        totals += values[:, tap]
    return first, values / np.where(totals == 0.0, 1.0, totals)[:, None]


def _integer_weights(values: Float64Array) -> tuple[Int32Array, int]:
    """The same as integers, and their fractional bits."""
    largest, bits = values.max(), 0
    while bits < 22 and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = values * (1 << bits)
    return np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int32), bits


def _along_rows(rows: UInt8Array, num_out: int, name: str) -> UInt8Array:
    """(N, M) -> (num_out, M)."""
    num_in, num_columns = rows.shape
    first, values = filter_weights(num_in, num_out, name)
    integers, bits = _integer_weights(values)
    out = np.empty((num_out, num_columns), np.uint8)
    sums, product = np.empty(num_columns, np.int32), np.empty(num_columns, np.int32)
    for number, (start, weights) in enumerate(zip(first.tolist(), integers, strict=True)):
        sums.fill(1 << (bits - 1))
        for tap in weights.nonzero()[0].tolist():
            np.multiply(rows[start + tap], weights[tap], out=product)
            np.add(sums, product, out=sums)
        np.right_shift(sums, bits, out=sums)
        np.maximum(sums, 0, out=sums)
        out[number] = np.minimum(sums, 255, out=sums)
    return out


def resize(image: UInt8Array, height: int, width: int, name: str) -> UInt8Array:
    """(H, W, C) to (height, width, C), by the filter of this name."""
    num_rows, num_columns, channels = image.shape
    if num_columns != width:
        across = np.empty((num_rows, width, channels), np.uint8)
        for start in range(0, num_rows, _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            columns = np.ascontiguousarray(image[block].swapaxes(0, 1)).reshape(num_columns, -1)
            across[block] = _along_rows(columns, width, name).reshape(width, -1, channels).swapaxes(0, 1)
        image = across
    if num_rows != height:
        image = _along_rows(image.reshape(num_rows, -1), height, name).reshape(height, width, channels)
    return np.ascontiguousarray(image)
