"""An image as its file has it -> pixels. Pillow decodes; what it may be is held to bounds before memory is taken.

Upright as its EXIF data say, transparency on white, of animations the first frame; of 16 bits the upper eight.
"""

import importlib.util
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from reader_edge_runtime.arrays import UInt8Array
from reader_edge_runtime.errors import ImageError, InstallationError
from reader_edge_runtime.untrusted.plain_file import check_plain_file
from reader_edge_runtime.untrusted.user_input import given_path, read_bounded, short_repr

if TYPE_CHECKING:
    from PIL.Image import Image

ImageSource: TypeAlias = "bytes | bytearray | memoryview | str | os.PathLike[str] | Image"

MISSING_PILLOW = "Images need Pillow, which is missing: pip install 'reader-edge[images]'."
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # of the 43 that Pillow opens
MAX_BYTES = 20 << 20
MAX_PIXELS = 50_000_000
MAX_SIDE = 16_384
_MAX_SCANS = 200  # of a JPEG file: each goes over all pixels, and may have a few bytes
_BAND_PIXELS = 1 << 20  # that are converted at a time
_ORIENTATION = 0x0112  # of EXIF
_TURNS: dict[Any, tuple[bool, int, int]] = {  # by orientation: whether axes are swapped, then how rows and columns run
    2: (False, 1, -1),
    3: (False, -1, -1),
    4: (False, -1, 1),
    5: (True, 1, 1),
    6: (True, 1, -1),
    7: (True, -1, -1),
    8: (True, -1, 1),
}
_one_at_a_time = threading.Lock()  # for memory, and since `catch_warnings` is the whole process's


class GivenImage:
    """An image whose header was read. Pixels of a file are decoded each time that they are wanted.

    name: what sentences call it. size: width and height, upright. content: all that its pixels come from.
    """

    def __init__(self, source: ImageSource, name: str = "The image") -> None:
        """source: a file's content, a path or a PIL image, which may change later. name: of one that has no path.

        Raises ImageError, and InstallationError without Pillow.
        """
        if importlib.util.find_spec("PIL") is None:
            raise InstallationError(MISSING_PILLOW)
        import PIL.Image

        if isinstance(source, str | os.PathLike):
            path = given_path(source, "image")
            name = f"'{path}'"
            source = read_image(path)
        self.name = name
        self.content: tuple[bytes | memoryview, ...]
        with _one_at_a_time, _refusing(name):
            if isinstance(source, PIL.Image.Image):
                _check_size(source.size, name)
                source.load()
                self._source: bytes | UInt8Array = _upright(_on_white(source, name), _orientation(source))
                height, width = self._source.shape[:2]
                self.content = (b"pixels", self._source.data.cast("B"))
            else:
                self._source = _checked(source, name)
                image = _opened(self._source, name)
                self._orientation = _orientation(image)
                is_swapped, *_ = _TURNS.get(self._orientation, (False,))
                width, height = image.size[:: -1 if is_swapped else 1]
                self.content = (PIL.__version__.encode(), self._source)  # other decoders give other pixels
        self.size = width, height

    def pixels(self) -> UInt8Array:
        """(H, W, 3), RGB. Raises ImageError."""
        if not isinstance(self._source, bytes):
            return self._source
        with _one_at_a_time, _refusing(self.name):
            image = _opened(self._source, self.name)
            image.load()
            pixels = _upright(_on_white(image, self.name), self._orientation)
            if pixels.shape[1::-1] != self.size:
                raise ValueError("its header tells another size")
        return pixels


def decode_image(source: ImageSource, name: str = "The image") -> UInt8Array:
    """Pixels of an image. Arguments and errors: see `GivenImage`."""
    return GivenImage(source, name).pixels()


def read_image(path: Path) -> bytes:
    """The content of an image's file. Raises ImageError."""
    check_plain_file(path, ImageError, "give the path of an image")
    try:
        return read_bounded(path, MAX_BYTES)
    except OSError as error:
        raise ImageError(f"'{path}' cannot be read ({error.strerror}): give another image.") from None


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Whatever Pillow raises over a broken image as an ImageError, and nothing of what it warns of."""
    from PIL.Image import DecompressionBombError, DecompressionBombWarning

    try:
        with warnings.catch_warnings(action="ignore"):
            warnings.simplefilter("error", DecompressionBombWarning)  # a GIF's frame takes memory when it is opened
            yield
    except ImageError:
        raise
    except (DecompressionBombError, DecompressionBombWarning):
        raise _too_large(name, f"more than {MAX_PIXELS}") from None
    except MemoryError:
        raise ImageError(f"{name} needs more memory than is free: shrink it.") from None
    except Exception as error:  # its decoders raise nearly anything
        reason = f" ({' '.join(str(error).split()):.120})" if str(error) else ""
        raise ImageError(f"{name} cannot be decoded{reason}: give a whole image, of {_FORMATS_IN_WORDS}.") from None


_FORMATS_IN_WORDS = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"


def _checked(source: object, name: str) -> bytes:
    """A file's content, before Pillow reads its header."""
    if not isinstance(source, bytes | bytearray | memoryview):
        wanted = "give a path, the bytes of a file or a PIL image"
        raise ImageError(f"{name} is {short_repr(source)}, which is no image: {wanted}.")
    data = bytes(source)
    if len(data) > MAX_BYTES:
        raise ImageError(f"{name} has {len(data)} bytes, but may have {MAX_BYTES} at most: shrink it.")
    if size := _webp_size(data):
        _check_size(size, name)
    if data.startswith(b"\xff\xd8") and data.count(b"\xff\xda") > _MAX_SCANS:
        raise ImageError(f"{name} has more than {_MAX_SCANS} scans: save it without them.")
    return data


def _opened(data: bytes, name: str) -> "Image":
    """Its pixels are not decoded yet."""
    import PIL.Image

    try:
        image = PIL.Image.open(BytesIO(data), formats=FORMATS)
    except PIL.UnidentifiedImageError:
        raise ImageError(f"{name} is no image of {_FORMATS_IN_WORDS}: convert it.") from None
    _check_size(image.size, name)
    if b"eXIf" in data:  # which a PNG may have behind its pixels
        image.load()
    return image


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """What the header of a WebP file says, for which Pillow takes memory as soon as it opens it."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return None
    match data[12:16]:
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            width, height = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (26, 28))
            return width, height


def _check_size(size: tuple[int, int], name: str) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"{name} has no pixels: give another image.")
    if width > MAX_SIDE or height > MAX_SIDE or width * height > MAX_PIXELS:
        raise _too_large(name, f"{width} x {height}")


def _too_large(name: str, found: str) -> ImageError:
    most = f"but may have {MAX_PIXELS} at most, and {MAX_SIDE} on a side"
    return ImageError(f"{name} has {found} pixels, {most}: shrink it.")


def _on_white(image: "Image", name: str) -> UInt8Array:
    """(H, W, 3), a band of rows at a time."""
    import PIL.Image

    if image.mode in ("I", "F"):
        raise ImageError(f"{name} has pixels of 32 bits (mode {image.mode}): convert it to 8 bits.")
    width, height = image.size
    pixels = np.empty((height, width, 3), np.uint8)
    is_deep = image.mode.startswith("I;16")
    has_alpha = not is_deep and (image.getbands()[-1] in "Aa" or image.info.get("transparency") is not None)
    step = max(1, _BAND_PIXELS // width)
    for top in range(0, height, step):
        band = image.crop((0, top, width, min(height, top + step)))
        if is_deep:
            pixels[top : top + step] = (np.asarray(band) >> 8).astype(np.uint8)[:, :, None]
            continue
        if has_alpha:
            band = band.convert("RGBA")
            band = PIL.Image.alpha_composite(PIL.Image.new("RGBA", band.size, (255, 255, 255, 255)), band)
        pixels[top : top + step] = np.asarray(band.convert("RGB"))
    return pixels


def _orientation(image: "Image") -> object:
    """None where it has no EXIF data, or broken ones."""
    import PIL.Image

    try:
        return PIL.Image.Image.getexif(image).get(_ORIENTATION)  # that of a PNG would decode it
    except Exception:  # which is no reason to refuse its pixels
        return None


def _upright(pixels: UInt8Array, orientation: object) -> UInt8Array:
    is_swapped, down, across = _TURNS.get(orientation, (False, 1, 1))
    turned = pixels.swapaxes(0, 1) if is_swapped else pixels
    return np.ascontiguousarray(turned[::down, ::across])
