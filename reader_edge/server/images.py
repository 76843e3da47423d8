"""Images of requests, as the bytes of their files: nothing is fetched from an address, and no path is opened."""

import binascii
from typing import Any

from reader_edge.server.api_error import ApiError, shown_json
from reader_edge_runtime.images.decode import MAX_BYTES
from reader_edge_runtime.untrusted.user_input import WITHHELD

MAX_IMAGES = 256  # of a message
_MAX_SHOWN = 80
_FORM = "'data:image/png;base64,...'"


def image_part(data: str, place: str) -> dict[str, Any]:
    """A part of a message's content, of an image in base64. place: of it, for a refusal. Raises ApiError."""
    if len(data) > MAX_BYTES * 4 // 3 + 4:
        sentence = (
            f"'{place}' has {len(data)} characters, more than an image of {MAX_BYTES >> 20} MiB: give a smaller one."
        )
        raise ApiError(400, sentence, place, "image_too_large")
    try:
        return {"type": "image", "image": binascii.a2b_base64(data.replace("\n", ""), strict_mode=True)}
    except ValueError:  # also of characters that are not ASCII
        rest = "which is no base64: give the bytes of an image's file so."
        public = f"'{place}' is {WITHHELD}, {rest}"
        sentence = f"'{place}' is {shown_json(data[:_MAX_SHOWN])}, {rest}"
        raise ApiError(400, sentence, place, "invalid_base64", public) from None


def part_of_url(url: str, place: str) -> dict[str, Any]:
    """The same of an image in a data URL. Raises ApiError."""
    head, _, data = url.partition(",")
    if (head[:5].lower(), head[-7:].lower()) != ("data:", ";base64"):
        rest = f"but nothing is fetched from there: give the image as {_FORM}."
        public = f"'{place}' is {WITHHELD}, {rest}"
        sentence = f"'{place}' is {shown_json(url[:_MAX_SHOWN])}, {rest}"
        raise ApiError(400, sentence, place, "invalid_image_url", public)
    return image_part(data, place)
