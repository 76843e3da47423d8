"""From pixels to what a vision tower takes, bit by bit as transformers 5.23's torchvision processors make it.

Whatever depends on an image's size is an input, made here (P patches, L tokens of a part, merge_size**2 patches each,
in the order of tokens):

    patches           float32 (P, ...)   all families but those that take pixels
    pixels            float32 (1, 3, tile_size, tile_size)  gemma3, smolvlm, idefics3
    positions         int64 (P, 2)       row and column in qwen3_5, qwen3_vl, qwen2_5_vl, mistral3; x and y in gemma4
    interp_indices    int64 (P, 4)       qwen3_5, qwen3_vl: rows of the table of positions, and
    interp_weights    float32 (P, 4)     their weights
    position_weights  float32 (P, position_side**2)  lfm2_vl
    window_index      int64 (L,)         qwen2_5_vl: the order of tokens in which windows lie together,
    windows           int64 (W, S)       and in that order the patches of each of W windows, with -1 behind the last
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Array, Float32Array, UInt8Array
from reader_edge_runtime.images.layout import Size, lay_out
from reader_edge_runtime.images.resize import filter_weights, resize
from reader_edge_runtime.package.images import QWEN_FAMILIES, TILED_FAMILIES, ImageRules


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image, or a tile of it: one pass of the tower.

    inputs: of vision.onnx, by name. grid: rows and columns of tokens. text: stands for it in the prompt, with as many
    placeholders as there are features; those of an image's parts follow each other.
    """

    inputs: Mapping[str, Array]
    grid: Size
    text: str

    @property
    def num_tokens(self) -> int:
        return self.grid[0] * self.grid[1]


def prepare(image: UInt8Array, rules: ImageRules) -> list[PreparedImage]:
    """Parts of an image (H, W, 3), upright RGB: itself, or its tiles by rows and then the whole in small.

    Raises ImageError for one too narrow for its model.
    """
    layout = lay_out(image.shape[1], image.shape[0], rules)
    resized = image
    for height, width in layout.sizes:
        resized = resize(resized, height, width, rules.filter)
    (rows, columns), side = layout.tiles, rules.tile_size
    pixels = [
        resized[row * side : (row + 1) * side, column * side : (column + 1) * side]
        for row in range(rows)
        for column in range(columns)
    ]
    for part in layout.parts[len(pixels) :]:  # the whole; that of Idefics 3 is made of the enlarged one
        source = image if rules.family == "lfm2_vl" and pixels else resized
        pixels.append(resize(source, *part.size, rules.filter))
    return [
        PreparedImage(_inputs(each, rules), part.grid, part.text)
        for each, part in zip(pixels, layout.parts, strict=True)
    ]


def _inputs(pixels: UInt8Array, rules: ImageRules) -> dict[str, Array]:
    """Of a part whose size is its own, (H, W, 3)."""
    if rules.family == "gemma3" or rules.family in TILED_FAMILIES:
        return {"pixels": np.ascontiguousarray(_normalized(pixels, rules).transpose(2, 0, 1)[None])}
    patch, merge = rules.patch_size, rules.merge_size
    rows, columns = pixels.shape[0] // patch, pixels.shape[1] // patch
    blocks = pixels.reshape(rows // merge, merge, patch, columns // merge, merge, patch, 3)
    blocks = blocks.transpose(0, 3, 1, 4, 2, 5, 6).reshape(rows * columns, patch, patch, 3)
    values = _normalized(blocks, rules)
    order = np.arange(rows * columns).reshape(rows // merge, merge, columns // merge, merge)
    places = np.divmod(order.transpose(0, 2, 1, 3).reshape(-1), columns)  # rows and columns of patches, block by block
    if rules.family in QWEN_FAMILIES:  # each patch twice, as two moments of a film
        values = np.repeat(values.transpose(0, 3, 1, 2)[:, :, None], 2, 2)
    elif rules.family == "mistral3":
        values = values.transpose(0, 3, 1, 2)
    inputs = {"patches": np.ascontiguousarray(values.reshape(rows * columns, -1))}
    if rules.family == "lfm2_vl":
        return inputs | {"position_weights": _position_weights(places, rows, columns, rules.position_side)}
    inputs["positions"] = np.stack(places[::-1] if rules.family == "gemma4" else places, -1)
    if rules.family == "qwen2_5_vl":
        return inputs | _windows(rows // merge, columns // merge, rules)
    if rules.family in QWEN_FAMILIES:
        return inputs | _interpolation(places, rows, columns, rules.position_side)
    return inputs


def _normalized(pixels: UInt8Array, rules: ImageRules) -> Float32Array:
    """(..., 3). The factor 1 / 255 is in the mean and the deviation, as torchvision's processors have it."""
    values = pixels.astype(np.float32)
    if not rules.mean:
        return values * np.float32(1 / 255)
    mean, std = (np.asarray(numbers, np.float32) * np.float32(255.0) for numbers in (rules.mean, rules.std))
    values -= mean
    values /= std
    return values


def _interpolation(places: tuple[Array, Array], rows: int, columns: int, side: int) -> dict[str, Array]:
    """A table of side * side positions, resized to the grid by bilinear interpolation with corners that stay."""
    (row_taps, row_weights), (column_taps, column_weights) = (
        _two_taps(each, size, side) for each, size in zip(places, (rows, columns), strict=True)
    )
    return {
        "interp_indices": (row_taps[:, :, None] * side + column_taps[:, None, :]).reshape(-1, 4),
        "interp_weights": (row_weights[:, :, None] * column_weights[:, None, :]).reshape(-1, 4),
    }


def _two_taps(places: Array, size: int, side: int) -> tuple[Array, Array]:
    """Of places along an axis of `size`, their two neighbours (P, 2) along one of `side`, and the weights of these."""
    at = places.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    floor = np.floor(at)[:, None]
    offsets = np.arange(2, dtype=np.float32)
    weights = np.maximum(1 - np.abs(at[:, None] - floor - offsets), np.float32(0))
    return np.minimum((floor + offsets).astype(np.int64), side - 1), weights


def _position_weights(places: tuple[Array, Array], rows: int, columns: int, side: int) -> Float32Array:
    """(P, side**2): what each position of the table adds to a patch, resized with antialias."""
    by_row, by_column = (_dense_weights(side, size)[each] for each, size in zip(places, (rows, columns), strict=True))
    return (by_row[:, :, None] * by_column[:, None, :]).reshape(-1, side**2).astype(np.float32)


def _dense_weights(num_in: int, num_out: int) -> Array:
    """(num_out, num_in)."""
    first, values = filter_weights(num_in, num_out, "bilinear")
    dense = np.zeros((num_out, num_in + values.shape[1]))
    np.put_along_axis(dense, first[:, None] + np.arange(values.shape[1]), values, 1)
    return dense[:, :num_in]


def _windows(rows: int, columns: int, rules: ImageRules) -> dict[str, Array]:
    """Windows of attention over a grid of tokens; those at its ends are smaller."""
    side = rules.window_size // rules.unit
    row, column = np.divmod(np.arange(rows * columns), columns)
    window = row // side * (-(-columns // side)) + column // side
    order = np.argsort(window, kind="stable")
    sizes = np.bincount(window) * rules.merge_size**2
    ends, place = np.cumsum(sizes), np.arange(sizes.max())
    windows = np.where(place < sizes[:, None], place + (ends - sizes)[:, None], -1)
    return {"window_index": order, "windows": windows}
