"""Calls as Python writes them, `f(a=1)`, with names that Python reserves and texts of any line."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from reader_edge_runtime.text.tool_calls.literal_reader import LiteralReader, UnclosedTextError

_NAME = re.compile(r"\s*([\w.-]+)\s*\(")
_KEY = re.compile(r"\s*([^\s=,*()\[\]{}'\"][^=,*()\[\]{}'\"]{0,255}?)\s*=(?!=)\s*")
_ANY_NAME = r"[\w.-]+"
_ANY_KEY = r"[^\W\d][\w.-]*"


class PythonCalls:
    """Reads calls in a list, or one behind another, with commas or lines between them.

    keys: declared names of arguments, by that of the tool. quote: in which texts stand as they are, whatever quotes
    and backslashes they have themselves; "" where texts are Python's or JSON's. Such a text ends at its first quote
    that another argument, another call or the end of all stands behind. After other quotes of its own these must be
    declared, and of all texts where the calls cannot be read otherwise.
    """

    def __init__(self, body: str, keys: Mapping[str, Iterable[str]], quote: str = "") -> None:
        self._reader = LiteralReader(body.strip())
        self._keys, self._quote = keys, quote
        self._is_list = self._reader.has("[")
        self._first_ends: re.Pattern[str] | None = self._ends(_ANY_NAME, _ANY_KEY)

    def read(self) -> list[tuple[str, dict[str, Any]]]:
        """Each call's name and arguments. Raises ValueError, which UnclosedTextError is for a text that has no end."""
        start = self._reader.place
        try:
            return list(self._calls())
        except ValueError as error:
            if not self._quote:
                raise
            self._reader.place, self._first_ends = start, None
            try:
                return list(self._calls())
            except ValueError:
                raise error from None

    def _calls(self) -> Iterator[tuple[str, dict[str, Any]]]:
        reader = self._reader
        while (name := reader.take(_NAME)) is not None:
            yield name[1], self._arguments(name[1])
            if not (reader.has(",") or reader.has(";")):
                reader.has("")
        if self._is_list:
            reader.need("]")
        if reader.place < len(reader.text):
            raise ValueError("no call")

    def _arguments(self, name: str) -> dict[str, Any]:
        reader, arguments = self._reader, dict[str, Any]()
        declared = self._ends(_any_of(self._keys), _any_of(self._keys.get(name) or ()) or _ANY_KEY)
        while (key := reader.take(_KEY)) is not None:
            is_verbatim = bool(self._quote) and reader.text.startswith(self._quote, reader.place)
            arguments[key[1]] = self._verbatim(declared) if is_verbatim else reader.value(declared)
            if not reader.has(","):
                break
        reader.need(")")
        return arguments

    def _ends(self, name: str, key: str) -> re.Pattern[str]:
        """What stands behind an argument: another of these keys, another call by one of these names, or the end."""
        last = r"(?:,\s*)?\]\s*\Z" if self._is_list else r"\Z"
        end = rf"\s*(?:,\s*)?\)\s*(?:{last}|(?:[,;]\s*)?(?:{name})\s*\()"
        return re.compile(rf"\s*,\s*(?:{key})\s*=(?!=)|{end}")

    def _verbatim(self, later_ends: re.Pattern[str]) -> str:
        reader, start = self._reader, self._reader.place + 1
        ends, end = self._first_ends or later_ends, reader.text.find(self._quote, start)
        while end >= 0:
            if ends.match(reader.text, end + 1):
                reader.place = end + 1
                return reader.text[start:end]
            ends, end = later_ends, reader.text.find(self._quote, end + 1)
        raise UnclosedTextError


def _any_of(names: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, names), key=len, reverse=True))
