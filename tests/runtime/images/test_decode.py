import importlib.util
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reader_edge_runtime.errors import ImageError, InstallationError
from reader_edge_runtime.images import decode
from reader_edge_runtime.images.decode import FORMATS, MAX_BYTES, MAX_SIDE, decode_image
from tests.fuzz.mutation import memory_limit

LOSSLESS = [each for each in FORMATS if each != "JPEG"]
SIZE = 30, 20  # width and height
_random = np.random.default_rng(3)
RGB = Image.fromarray(_random.integers(0, 256, (20, 30, 3), dtype=np.uint8))
GREY = Image.fromarray(_random.integers(0, 256, (20, 30), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **{"lossless": True, **options} if kind == "WEBP" else options)
    return file.getvalue()


@pytest.mark.parametrize("kind", LOSSLESS)
def test_pixels_of_each_format(kind: str, tmp_path: Path) -> None:
    image = RGB.quantize(200).convert("RGB") if kind == "GIF" else RGB
    data = encoded(image, kind)
    path = tmp_path / "image"
    path.write_bytes(data)
    for source in (data, bytearray(data), memoryview(data), path, str(path), image):
        assert np.array_equal(decode_image(source), np.asarray(image))


def test_pixels_of_a_photograph() -> None:
    smooth = RGB.resize((300, 200), Image.Resampling.BICUBIC)
    found = decode_image(encoded(smooth, "JPEG", quality=95))
    assert np.abs(found.astype(int) - np.asarray(smooth)).mean() < 3


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "HSV", "LAB", "RGBX"])
def test_modes_without_transparency_become_rgb(mode: str) -> None:
    image = RGB.convert(mode)
    found = decode_image(image)
    assert found.shape == (20, 30, 3)
    assert np.array_equal(found, np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_transparency_lies_on_white(mode: str, kind: str) -> None:
    image = RGB.convert(mode)
    image.putalpha(GREY)
    alpha = np.asarray(GREY)[:, :, None] / 255
    expected = np.asarray(RGB.convert("L" if mode == "LA" else "RGB").convert("RGB")) * alpha + 255 * (1 - alpha)
    found = decode_image(encoded(image, kind, **({"exact": True} if kind == "WEBP" else {})))
    assert np.abs(found - expected).max() <= 1
    for clear in (Image.new("RGBA", SIZE, (9, 9, 9, 0)), Image.new("RGBa", SIZE)):
        assert (decode_image(clear) == 255).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_colour_is_white(kind: str) -> None:
    image = RGB.quantize(16)
    clear = np.asarray(image) == 3
    found = decode_image(encoded(image, kind, transparency=3))
    assert clear.any()
    assert (found[clear] == 255).all()
    assert np.array_equal(found[~clear], np.asarray(image.convert("RGB"))[~clear])


def test_of_sixteen_bits_the_upper_eight() -> None:
    deep = np.arange(600, dtype=np.uint16).reshape(20, 30) * 109
    found = decode_image(encoded(Image.fromarray(deep)))
    assert np.array_equal(found, (deep >> 8).astype(np.uint8)[:, :, None].repeat(3, 2))


@pytest.mark.parametrize("mode", ["F", "I"])
def test_numbers_without_a_known_range_are_refused(mode: str) -> None:
    with pytest.raises(ImageError, match=f"32 bits \\(mode {mode}\\): convert it to 8 bits"):
        decode_image(GREY.convert(mode))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_images_are_upright(kind: str, orientation: int) -> None:
    from PIL import ImageOps

    image = RGB.resize((64, 32), Image.Resampling.NEAREST)
    tags = Image.Exif()
    tags[0x0112] = orientation
    data = encoded(image, kind, exif=tags)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB"))
    assert expected.shape == ((64, 32, 3) if orientation > 4 else (32, 64, 3))
    assert np.array_equal(decode_image(data), expected)


def test_broken_exif_data_are_no_reason_to_refuse_an_image() -> None:
    data = encoded(RGB, "PNG", exif=b"Exif\0\0MM\0\x2a\xff\xff\xff\xff broken")
    assert np.array_equal(decode_image(data), np.asarray(RGB))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame(kind: str) -> None:
    first = RGB.quantize(100).convert("RGB")
    data = encoded(first, kind, save_all=True, append_images=[GREY.convert("RGB")] * 2)
    assert np.array_equal(decode_image(data), np.asarray(first))


def test_bands_of_a_tall_image_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_BAND_PIXELS", 100)
    for mode in ("RGB", "RGBA", "P"):
        assert np.array_equal(decode_image(RGB.convert(mode)), np.asarray(RGB.convert(mode).convert("RGB")))


def _png(width: int, height: int) -> bytes:
    """With a right header, and hardly any content."""
    head = struct.pack(">II5B", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _jpeg(width: int, height: int) -> bytes:
    data = bytearray(encoded(RGB, "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def _gif(width: int, height: int) -> bytes:
    data = bytearray(encoded(RGB, "GIF"))
    data[6:10] = struct.pack("<HH", width, height)
    return bytes(data)


def _gif_frame(width: int, height: int) -> bytes:
    """Its first frame is larger than its screen."""
    data = bytearray(encoded(RGB, "GIF"))
    at = data.index(b"\x2c\0\0\0\0" + struct.pack("<HH", *SIZE))
    data[at + 5 : at + 9] = struct.pack("<HH", width, height)
    return bytes(data)


def _gif_cleared(width: int, height: int) -> bytes:
    """The same, whose place is cleared behind it: Pillow takes memory for that as soon as it opens the file."""
    data = _gif_frame(width, height)
    at = data.index(b"\x2c\0\0\0\0" + struct.pack("<HH", width, height))
    return data[:at] + b"\x21\xf9\x04\x08\0\0\0\0" + data[at:]


def _bmp(width: int, height: int) -> bytes:
    data = bytearray(encoded(RGB, "BMP"))
    data[18:26] = struct.pack("<ii", width, height)
    return bytes(data)


def _webp(width: int, height: int) -> bytes:
    """An animation, whose header has its size alone."""
    data = bytearray(encoded(RGB, "WEBP", save_all=True, append_images=[GREY.convert("RGB")]))
    assert data[12:16] == b"VP8X"
    data[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)


def _webp_lossy(width: int, height: int) -> bytes:
    data = bytearray(encoded(RGB, "WEBP", lossless=False))
    assert data[12:16] == b"VP8 "
    data[26:30] = struct.pack("<HH", min(width, 0x3FFF), min(height, 0x3FFF))
    return bytes(data)


def _webp_lossless(width: int, height: int) -> bytes:
    data = bytearray(encoded(RGB, "WEBP"))
    assert data[12:16] == b"VP8L"
    bits = min(width - 1, 0x3FFF) | min(height - 1, 0x3FFF) << 14 | data[24] >> 4 << 28
    data[21:25] = bits.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("size", [(12_000, 12_000), (8_000, 8_000), (MAX_SIDE, MAX_SIDE)])
@pytest.mark.parametrize(
    "made", [_png, _jpeg, _gif, _gif_frame, _gif_cleared, _bmp, _webp, _webp_lossy, _webp_lossless]
)
def test_more_pixels_than_the_limit_are_refused_before_memory_is_taken(
    made: Callable[[int, int], bytes], size: tuple[int, int]
) -> None:
    """Such as a PNG of 140 kB, which would take 721 MiB."""
    data = made(*size)
    Image.init()
    with memory_limit(96 << 20), pytest.raises(ImageError, match=r"^The image has .* pixels, but may have 50000000"):
        decode_image(data)


@pytest.mark.parametrize("size", [(20_000, 10), (10, 20_000)])
def test_long_sides_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ImageError, match=f"has {size[0]} x {size[1]} pixels, .* 50000000 at most, and 16384 on a side"):
        decode_image(_png(*size))


def test_a_pil_image_has_the_same_limits() -> None:
    with pytest.raises(ImageError, match="20000 x 10 pixels"):
        decode_image(Image.new("1", (20_000, 10)))
    with pytest.raises(ImageError, match="no pixels"):
        decode_image(Image.new("RGB", (0, 10)))


def test_more_bytes_than_the_limit_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with memory_limit(64 << 20), pytest.raises(ImageError, match=r"large\.png' cannot be read \(more than the 20 MiB"):
        decode_image(path)
    with pytest.raises(ImageError, match=f"has {MAX_BYTES + 1} bytes, but may have {MAX_BYTES}"):
        decode_image(bytes(MAX_BYTES + 1))


def test_scans_without_number_are_refused() -> None:
    """Each of a few bytes would go over all pixels."""
    data = encoded(RGB, "JPEG", progressive=True)
    at = data.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="more than 200 scans"):
        decode_image(data[:at] + data[at:-2] * 300 + data[-2:])


def test_warnings_of_pillow_stay_inside() -> None:
    image = RGB.quantize(16)
    image.info["transparency"] = bytes(range(16))  # which Pillow warns of when it is converted
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        decode_image(image)
        with pytest.raises(ImageError):
            decode_image(_png(10_000, 10_000))
    assert shown == []


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "TGA"])
def test_other_formats_are_refused_by_name_of_those_that_are_read(kind: str) -> None:
    with pytest.raises(ImageError, match="is no image of PNG, JPEG, WEBP, GIF or BMP: convert it"):
        decode_image(encoded(RGB, kind))


@pytest.mark.parametrize("kind", FORMATS)
def test_half_a_file_is_refused(kind: str) -> None:
    data = encoded(RGB, kind)
    with pytest.raises(ImageError, match=r"^picture 2 .*: (give a whole image|convert it)[^\n]*\.$"):
        decode_image(data[: len(data) // 2], "picture 2")


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, words in ((pipe, "is a pipe"), (tmp_path, "is a folder"), (tmp_path / "none", "is missing")):
        with pytest.raises(ImageError, match=words):
            decode_image(path)


@pytest.mark.parametrize("source", [None, 5, [1], np.zeros((2, 2, 3), np.uint8)])
def test_what_is_no_image_is_refused(source: Any) -> None:
    with pytest.raises(ImageError, match="which is no image: give a path, the bytes of a file or a PIL image"):
        decode_image(source)


def test_without_pillow_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InstallationError, match=r"Images need Pillow.*pip install 'reader-edge\[images\]'"):
        decode_image(b"")


def test_threads_decode_the_same_pixels() -> None:
    images = [RGB.rotate(angle) for angle in range(0, 90, 10)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(decode_image, [encoded(image) for image in images * 3]))
    assert all(np.array_equal(each, np.asarray(image)) for each, image in zip(found, images * 3, strict=True))
