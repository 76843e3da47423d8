"""Values as models write them outside JSON: Python's literals, JSON's words among them, and texts between marks."""

import codecs
import json
import re
from collections.abc import Sequence
from typing import Any

from reader_edge_runtime.untrusted.untrusted_json import finite, load_finite

_LITERALS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<based>0[xX][\da-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+)|(?P<whole>\d[\d_]*)"
    r"|(?P<float>(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))"
)
_SPACE = re.compile(r"\s*")
_TEXT_BEGIN = re.compile(r"""(?P<prefix>[uU]|[fF]?[rR]?|[rR][fF])(?P<quote>'''|\"""|'|")""")
_MORE_TEXT = re.compile(rf"\s*(?={_TEXT_BEGIN.pattern})")
_QUOTES = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in ("'", '"', "'''", '"""')}
# What Python's own escapes are; any other backslash, one at the end of a line too, is a part of the text.
_ESCAPE = re.compile(r"""\\(?:[\\'"abfnrtv]|[0-7]{1,3}|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8})""")
_PAIR = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
_BARE_KEY = re.compile(r"\s*([^\s:,{}\[\]\"'][^:,{}\[\]]*?)\s*:")
_BARE = re.compile(r"[^\s,{}\[\]\"'][^,{}\[\]]*")
_TOKEN = re.compile(r"[\w.+-]+")
_CLOSES = re.compile(r"""\s*(?:[,)\]}:'"+*%.(\[-]|\Z)""")  # what can stand behind a text of Python's


class UnclosedTextError(ValueError):
    """A quoted text has no end as yet."""


class LiteralReader:
    """Reads a text from its beginning on; `place` is how far it has come.

    marks: which stand on both sides of texts that are written as they are, beside Python's quotes. Where there are
    marks, keys and words may stand without any. All methods raise ValueError for what is not there.
    """

    def __init__(self, text: str, marks: Sequence[str] = ()) -> None:
        self.text, self.place = text, 0
        self._marks = marks

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What stands here and matches, which is behind the reader then."""
        found = pattern.match(self.text, self.place)
        self.place = self.place if found is None else found.end()
        return found

    def has(self, token: str) -> bool:
        """Whether this stands next, behind any space; it is behind the reader then."""
        self.take(_SPACE)
        is_next = self.text.startswith(token, self.place)
        self.place += len(token) if is_next else 0
        return is_next

    def need(self, token: str) -> None:
        if not self.has(token):
            raise ValueError(f"{token} expected")

    def value(self, ends: re.Pattern[str] | None = None) -> Any:
        """ends: what stands behind a text, where it may have quotes of its own that are not escaped."""
        if self.has("["):
            return self._items("]")[0]
        if self.has("("):
            items, is_tuple = self._items(")")
            return items if is_tuple or len(items) != 1 else items[0]
        if self.has("{"):
            return self._members()
        if self._mark or _TEXT_BEGIN.match(self.text, self.place):
            return self._texts(ends)
        token = self.take(_BARE if self._marks else _TOKEN)
        if token is None:
            raise ValueError("no value")
        text = token[0].rstrip()
        if text in _LITERALS:
            return _LITERALS[text]
        number = _NUMBER.fullmatch(text)
        if number is None and not self._marks:
            raise ValueError("no literal")
        return text if number is None else _number(number)

    def _items(self, end: str) -> tuple[list[Any], bool]:
        """Values up to this end, and whether a comma stands before it."""
        items: list[Any] = []
        while not self.has(end):
            items.append(self.value())
            if not self.has(","):
                self.need(end)
                return items, False
        return items, bool(items)

    def _members(self) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not self.has("}"):
            bare = self.take(_BARE_KEY) if self._marks and not self._mark else None
            key = self._texts(None) if bare is None else bare[1]
            if bare is None:
                self.need(":")
            members[key] = self.value()
            if not self.has(","):
                self.need("}")
                break
        return members

    @property
    def _mark(self) -> str:
        """The mark that stands next."""
        return next((mark for mark in self._marks if self.text.startswith(mark, self.place)), "")

    def _texts(self, ends: re.Pattern[str] | None) -> str:
        """A text between marks, or one in quotes, and those that stand right behind it, as Python joins them."""
        mark = self._mark
        if mark:
            start = self.place + len(mark)
            end = self.text.find(mark, start)
            if end < 0:
                raise UnclosedTextError
            self.place = end + len(mark)
            return self.text[start:end]
        parts = [self._quoted(ends)]
        while self.take(_MORE_TEXT):
            parts.append(self._quoted(None))
        return "".join(parts)

    def _quoted(self, ends: re.Pattern[str] | None) -> str:
        begin = self.take(_TEXT_BEGIN)
        if begin is None:
            raise ValueError("no text")
        prefix, quote = begin["prefix"].lower(), begin["quote"]
        start, end = self.place, self._end_of_text(self.place, quote)
        if ends is not None and not _CLOSES.match(self.text, end + len(quote)):
            end = self._later_end(end, quote, ends)
        text, self.place = self.text[start:end], end + len(quote)
        if "f" in prefix and ("{" in text or "}" in text):
            raise ValueError("no literal")
        return text if "r" in prefix else unescaped(text)

    def _later_end(self, first: int, quote: str, ends: re.Pattern[str]) -> int:
        """Of a text with quotes of its own that are not escaped; the first one's place where there is no other."""
        end = first
        try:
            while not ends.match(self.text, end + len(quote)):
                end = self._end_of_text(end + len(quote), quote)
        except UnclosedTextError:
            return first
        return end

    def _end_of_text(self, start: int, quote: str) -> int:
        """Where the next quote stands that is not escaped."""
        for found in _QUOTES[quote].finditer(self.text, start):
            if found[0] == quote:
                return found.start()
        raise UnclosedTextError


def unescaped(text: str) -> str:
    """A text with Python's escapes resolved; two halves of a character are one, as in JSON."""
    plain = _ESCAPE.sub(lambda found: codecs.decode(found[0], "unicode_escape"), text)
    return _PAIR.sub(lambda pair: json.loads(f'"\\u{ord(pair[0][0]):x}\\u{ord(pair[0][1]):x}"'), plain)


def _number(found: re.Match[str]) -> int | float:
    """Leading zeros are let pass, which Python refuses."""
    if found["float"] is not None:
        return finite(found[0].replace("_", ""))
    value = int(found["based"], 0) if found["based"] else int(found["whole"])
    checked: int = load_finite(repr(value))  # no more digits than JSON is read with
    return -checked if found["sign"] == "-" else checked
