"""Images in a line of the chat: paths of files that are there, as terminals write what is dropped on them."""

import os
import re
from pathlib import Path
from typing import Any

from reader_edge_runtime.images.decode import read_image

_ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"}
# In quotes that begin a word, or with a backslash before each character that a shell would read.
_WORD = re.compile(r"""(?<!\S)(?:'(?P<single>[^'\n]+)'|"(?P<double>[^"\n]+)")|(?P<bare>(?:\\.|[^\s'"\\])+)""")


def with_dropped_images(text: str) -> str | list[dict[str, Any]]:
    """The content of a message: its text, or in parts, images before it, where it names some.

    A path that leads to no file stays a part of the text. `~` is the user's own folder, as in a shell.
    """
    images: list[Path] = []

    def taken(word: re.Match[str]) -> str:
        path = _named(word)
        if path.suffix.lower() not in _ENDINGS:
            return word[0]
        path = _in_home(path) if word["bare"] else path
        if not os.path.isfile(path):  # unlike that of a Path, of whatever a word may be
            return word[0]
        images.append(path)
        return ""

    words = _WORD.sub(taken, text).strip()
    if not images:
        return text
    return [*({"type": "image", "image": path} for path in images), {"type": "text", "text": words}]


def missing_images(content: str | list[dict[str, Any]]) -> list[str]:
    """The words in the text of what `with_dropped_images` returned that are called as images are."""
    text = content if isinstance(content, str) else content[-1]["text"]
    return [word[0] for word in _WORD.finditer(text) if _named(word).suffix.lower() in _ENDINGS]


def _named(word: re.Match[str]) -> Path:
    return Path(word["single"] or word["double"] or re.sub(r"\\(.)", r"\1", word["bare"]))


def _in_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # of a user that there is none of
        return path


def with_read_images(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The same with what files hold now in place of their paths: later turns see it, whatever becomes of these.

    Raises ImageError.
    """
    if isinstance(content, str):
        return content
    return [{**part, "image": read_image(part["image"])} if part["type"] == "image" else part for part in content]
