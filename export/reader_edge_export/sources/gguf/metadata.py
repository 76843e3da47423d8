"""Typed access to a GGUF file's metadata; every error names the file, the key and its value."""

import math
import reprlib
from collections.abc import Callable
from typing import Any

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_runtime.errors import GgufError

_MAX_SIZE = 1 << 28
_MAX_TEXT_BYTES = 1 << 20  # those of tokens are bounded elsewhere; also what a chat template may have


class Metadata:
    """The values below a prefix, e.g. "llama", asked for by the rest of their keys.

    A value that is missing becomes the default; without a default, or of another kind, it is a GgufError.
    """

    def __init__(self, file: GgufFile, prefix: str) -> None:
        self._file = file
        self._prefix = f"{prefix}."
        self._asked: set[str] = set()

    def has(self, key: str) -> bool:
        return self._prefix + key in self._file.metadata

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._value(key, default, _is_text))

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A number of things, `least` or more."""
        return int(self._value(key, default, lambda value: type(value) is int and least <= value <= _MAX_SIZE))

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        return float(self._value(key, default, lambda value: type(value) in (int, float) and math.isfinite(value)))

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above nought."""
        return float(self._value(key, default, lambda value: type(value) in (int, float) and 0 < value < math.inf))

    def flag(self, key: str, default: bool | None = None) -> bool:
        return bool(self._value(key, default, lambda value: isinstance(value, bool)))

    def texts(self, key: str) -> list[str]:
        return list(self._value(key, None, lambda value: _holds(value, str)))

    def sizes(self, key: str) -> list[int]:
        return list(self._value(key, None, lambda value: _holds(value, int)))

    def numbers(self, key: str) -> list[float]:
        return list(self._value(key, None, lambda value: _holds(value, float) and all(map(math.isfinite, value))))

    def flags(self, key: str) -> list[bool]:
        return list(self._value(key, None, lambda value: _holds(value, bool)))

    def check_all_asked(self, ignored: tuple[str, ...]) -> None:
        """Raise GgufError for a value that nobody asked for, besides the ignored: it may change what is computed."""
        known = self._asked | {self._prefix + key for key in ignored}
        unknown = [key for key in self._file.metadata if key.startswith(self._prefix) and key not in known]
        if unknown:
            value = reprlib.repr(self._file.metadata[unknown[0]])
            raise GgufError(
                f"'{self._file.path}' sets {unknown[0]!r:.80} to {value}, which cannot be mapped exactly: "
                "give the model in Hugging Face format."
            )

    def _value(self, key: str, default: Any, is_usable: Callable[[Any], bool]) -> Any:
        name = self._prefix + key
        self._asked.add(name)
        value = self._file.metadata.get(name, default)
        if value is None:
            raise GgufError(f"'{self._file.path}' gives no {name}: convert the model anew.")
        if not is_usable(value):
            shown = reprlib.repr(value)  # not the whole of it, which may be many megabytes
            raise GgufError(f"'{self._file.path}' gives {name} as {shown}, which cannot be: convert it anew.")
        return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value.encode()) <= _MAX_TEXT_BYTES


def _holds(values: object, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)
