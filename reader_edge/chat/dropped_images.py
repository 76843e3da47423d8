"""Images in a line of the chat: paths of files that are there, as terminals write what is dropped on them."""

import re
from pathlib import Path
from typing import Any

from reader_edge_runtime.text.conversation import Message

_ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"}
# In quotes, or with a backslash before each character that a shell would read.
_WORD = re.compile(r"""'(?P<single>[^'\n]+)'|"(?P<double>[^"\n]+)"|(?P<bare>(?:\\.|[^\s'"\\])+)""")


def with_dropped_images(text: str) -> str | list[dict[str, Any]]:
    """The content of a message: its text, or in parts, images before it, where it names some.

    A path that leads to no file stays a part of the text.
    """
    images: list[Path] = []

    def taken(word: re.Match[str]) -> str:
        named = word["single"] or word["double"] or re.sub(r"\\(.)", r"\1", word["bare"])
        path = Path(named)
        if path.suffix.lower() not in _ENDINGS or not path.is_file():
            return word[0]
        images.append(path)
        return ""

    words = _WORD.sub(taken, text).strip()
    if not images:
        return text
    return [*({"type": "image", "image": path} for path in images), {"type": "text", "text": words}]


def holds_images(message: Message) -> bool:
    """Whether a message of the chat names images."""
    return isinstance(message["content"], list)
