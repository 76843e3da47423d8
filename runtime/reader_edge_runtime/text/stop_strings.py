"""Stop strings, looked for in an answer's text, and in what it would be with its special tokens.

`text_stream.TextStream` cuts the answer where one is found.
"""

import re
from collections.abc import Mapping, Sequence

_FIRST_MARK = 0xD800  # surrogates: no text that a tokenizer decodes has any
_UNNAMED = "\udfff"
_MARKS = re.compile("[\ud800-\udfff]")


class StopStrings:
    """Finds stop strings in a text that has a mark, one character, in place of each special token.

    A stop string is found where the text has it, with its special tokens or without.
    marks: of special tokens, by token id; empty where no stop string names one.
    """

    def __init__(self, stops: Sequence[str], special_tokens: Mapping[int, str]) -> None:
        """special_tokens: those that the text leaves out, what they would be in it, by id."""
        stops = [stop for stop in stops if not _MARKS.search(stop)]  # others are in no text
        named = {name for name in special_tokens.values() if any(name in stop for stop in stops)}
        mark_of = {name: chr(_FIRST_MARK + number) for number, name in enumerate(sorted(named, key=len, reverse=True))}
        self.marks = {token_id: mark_of.get(name, _UNNAMED) for token_id, name in special_tokens.items() if named}
        self._plain = tuple(stops)
        self._marked: tuple[str, ...] = ()
        if named:
            names = re.compile("|".join(map(re.escape, mark_of)))
            marked = (names.sub(lambda found: mark_of[found[0]], stop) for stop in stops)
            self._marked = tuple(stop for stop in marked if _MARKS.search(stop))
        self._longest = max(map(len, self._plain), default=1) - 1  # of what may begin one
        self.last_bytes = {stop.encode(errors="replace")[-1:] for stop in stops}

    def find(self, text: str) -> int:
        """Where the first stop string in a text begins; -1 where there is none."""
        found = [text.find(stop) for stop in self._marked]
        plain = without_marks(text)
        starts = [plain.find(stop) for stop in self._plain]
        if len(plain) < len(text):
            places = [place for place, character in enumerate(text) if not _MARKS.match(character)]
            starts = [places[start] if start >= 0 else -1 for start in starts]
        return min((start for start in (*found, *starts) if start >= 0), default=-1)

    def num_held(self, text: str) -> int:
        """Length of the longest end of a text that begins a stop string."""
        num_marks = len(text) - len(without_marks(text))
        sizes = range(min(self._longest + num_marks, len(text)), 0, -1)
        return next((size for size in sizes if self._begins(text[-size:])), 0)

    def _begins(self, text: str) -> bool:
        plain = without_marks(text)
        is_plain = bool(plain) and any(stop.startswith(plain) for stop in self._plain)
        return is_plain or any(stop.startswith(text) for stop in self._marked)


def without_marks(text: str) -> str:
    """What the caller sees of a text."""
    return _MARKS.sub("", text)
