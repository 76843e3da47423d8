"""Spoilt images: whatever their files hold, they are decoded, or refused in a sentence."""

from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from reader_edge_runtime.images.decode import decode_image
from reader_edge_runtime.images.patches import prepare
from tests.fuzz.mutation import Subject, mutated
from tests.runtime.images.published_rules import RULES

_SMALL = 1 << 16  # pixels of an image that is cut into patches too


def _samples(folder: Path) -> list[bytes]:
    """Of each format, and of the modes that it has."""
    pixels = np.random.default_rng(1).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    clear = image.convert("RGBA")
    clear.putalpha(image.convert("L"))
    tags = Image.Exif()
    tags[0x0112] = 6
    palette, deep = image.quantize(30), Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    frames: dict[str, Any] = {"save_all": True, "append_images": [image.rotate(180)]}
    options: dict[str, Any]
    found = []
    for each, kind, options in (
        *((each, "PNG", {}) for each in (image, clear, image.convert("1"), image.convert("LA"), deep)),
        *((image, "PNG", options) for options in (frames, {"exif": tags})),
        *((palette, kind, {"transparency": 3}) for kind in ("PNG", "GIF")),
        *((each, "JPEG", {"exif": tags}) for each in (image, image.convert("L"), image.convert("CMYK"))),
        *((image, "JPEG", options) for options in ({"progressive": True}, {"restart_marker_rows": 1})),
        *((image, "WEBP", options) for options in ({}, {"lossless": True}, frames, {"exif": tags})),
        *((clear, "WEBP", {}), (image, "GIF", frames), (palette, "GIF", {"interlace": 0})),
        *((each, "BMP", {}) for each in (image, clear, palette, image.convert("1"))),
    ):
        file = BytesIO()
        each.save(file, kind, **options)
        found.append(file.getvalue())
    return found


def _spoilt(content: bytes, random: Random) -> bytes:
    """Half of them in the head, where sizes and tables are."""
    if random.random() < 0.5:
        return mutated(content[:64], random) + content[64:]
    return mutated(content, random)


def _read(path: Path) -> None:
    pixels = decode_image(path)
    assert pixels.ndim == 3
    if pixels.shape[0] * pixels.shape[1] <= _SMALL:
        prepare(pixels, RULES["qwen2_5_vl"])


IMAGE_SUBJECTS = {"image": Subject(_samples, _spoilt, _read)}
