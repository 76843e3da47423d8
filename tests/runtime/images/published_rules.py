"""The rules of published models, as a manifest holds them; and pictures that are made here."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from reader_edge_runtime.arrays import UInt8Array
from reader_edge_runtime.package.images import ImageRules

_half: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
_clip: dict[str, Any] = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
_qwen3 = partial(
    ImageRules,
    patch_size=16,
    merge_size=2,
    filter="bicubic",
    min_pixels=65536,
    max_pixels=16777216,
    position_side=48,
    **_half,
)
_lfm2 = partial(
    ImageRules,
    family="lfm2_vl",
    patch_size=16,
    merge_size=2,
    filter="bilinear",
    min_pixels=64 * 32**2,
    max_pixels=256 * 32**2,
    tile_size=512,
    min_tiles=2,
    max_tiles=10,
    position_side=16,
    **_half,
)
_tiled = partial(ImageRules, filter="lanczos", cuts_tiles=True, **_half)
RULES = {
    "qwen3_5": _qwen3(family="qwen3_5"),
    "qwen3_vl": _qwen3(family="qwen3_vl"),
    "qwen2_5_vl": ImageRules(
        "qwen2_5_vl", 14, 2, "bicubic", min_pixels=3136, max_pixels=12845056, window_size=112, **_clip
    ),
    "mistral3": ImageRules("mistral3", 14, 2, "bicubic", longest_edge=1540, **_clip),
    "lfm2_vl": _lfm2(cuts_tiles=True, has_overview=True),
    "lfm2_vl without overview": _lfm2(cuts_tiles=True),
    "lfm2_vl whole": _lfm2(has_overview=True),
    "gemma3": ImageRules("gemma3", 14, 4, "bilinear", tile_size=896, **_half),
    "gemma4": ImageRules("gemma4", 16, 3, "bicubic", max_pixels=280 * 48**2),
    "smolvlm": _tiled(family="smolvlm", patch_size=16, merge_size=4, longest_edge=2048, tile_size=512),
    "smolvlm of 384": _tiled(family="smolvlm", patch_size=14, merge_size=3, longest_edge=1536, tile_size=384),
    "smolvlm whole": ImageRules("smolvlm", 16, 4, "lanczos", longest_edge=2048, tile_size=512, **_half),
    "idefics3": _tiled(family="idefics3", patch_size=14, merge_size=2, longest_edge=1456, tile_size=364),
}


def _noise(height: int, width: int) -> UInt8Array:
    return np.random.default_rng(height + width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def _gradient(height: int, width: int) -> UInt8Array:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // max(width - 1, 1), y * 255 // max(height - 1, 1), (x + y) % 256], -1).astype(np.uint8)


def _bars(height: int, width: int) -> UInt8Array:
    """Black on white with sharp edges, as print has them: filters with negative weights overshoot."""
    y, x = np.mgrid[0:height, 0:width]
    return np.where(((x * 7 // 5) % 11 < 4) ^ (y % 13 < 3), 0, 255).astype(np.uint8)[:, :, None].repeat(3, 2)


PICTURES: dict[str, Callable[[int, int], UInt8Array]] = {"noise": _noise, "gradient": _gradient, "bars": _bars}
_SIZES = ((480, 640), (333, 501), (64, 48), (700, 1301), (37, 1000), (57, 57), (1, 1), (1500, 600))
_LARGE = ("gemma3", "smolvlm", "idefics3")  # which enlarge each picture
CASES = [
    (name, picture, size)
    for name in RULES
    if name != "qwen3_vl"  # as qwen3_5
    for number, size in enumerate(_SIZES)
    for picture in (PICTURES if not name.startswith(_LARGE) else [list(PICTURES)[number % 3]])
]


def case_name(name: str, picture: str, size: tuple[int, int]) -> str:
    return f"{name}, {picture}, {size[0]}x{size[1]}"
