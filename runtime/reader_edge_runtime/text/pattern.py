"""A regular expression of a tokenizer.json, in Oniguruma's syntax, as the graph of its single characters.

Each character that the expression may match is a place of the graph, and an edge leads from it to each that may come
next. An edge counts how many ways there are to go it: two where a loop within a loop leaves open which of them goes on.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_MAX_PLACES, _MAX_EDGES, _MAX_ITEMS = 1 << 11, 1 << 17, 1 << 14
_MAX_DEPTH, _MAX_COPIES = 50, 64
_COUNT = re.compile(r"\{(\d{0,6})(,?)(\d{0,6})\}")
_ESCAPE = re.compile(r"\\(?:[pP]\{[^{}]*\}|x\{[^{}]*\}|x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{4}|0[0-7]{0,2}|c.|.)", re.DOTALL)
_ANCHORS = frozenset("bBAzZGKyY")  # behind a backslash
_NOT_FOLLOWED = frozenset("kgCM123456789")  # references and the like, which no tokenizer needs
_GROUP = re.compile(r"\?(?:(:|>|=|!|<=|<!)|<[A-Za-z_]\w*>|([im]*)(?:-[im]*)?([:)]))")
_ANY = "[\\s\\S]"


class PatternError(ValueError):
    """An expression, or a part of it, that is not followed."""


@dataclass(slots=True)
class _Part:
    """A part of an expression: the places that it may begin and end with.

    is_empty: whether it may match nothing. is_surely_empty: and so whatever the text is, with nothing looked at.
    sure: places at which it may end, whatever comes next.
    """

    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    is_empty: bool = True
    is_surely_empty: bool = True
    sure: set[int] = field(default_factory=set)


class Pattern:
    """atoms: of each place, an expression for its one character. edges: how many ways lead from a place to another.

    sure: places at which a match is found, however the text goes on. Raises PatternError for what is not followed.
    """

    def __init__(self, text: str) -> None:
        self.atoms: list[str] = []
        self.edges: Counter[tuple[int, int]] = Counter()
        self.sure: set[int] = set()
        self._text = text
        self._at = 0
        self._flags = ""
        self._depth = 0
        self._num_items = 0
        whole = self._choice()
        if self._at < len(text):
            raise PatternError("a bracket too many")
        self.sure |= whole.sure

    def _choice(self) -> _Part:
        part = self._sequence()
        while self._takes("|"):
            other = self._sequence()
            part = _Part(
                part.first + other.first,
                part.last + other.last,
                part.is_empty or other.is_empty,
                part.is_surely_empty or other.is_surely_empty,
                part.sure | other.sure,
            )
        return part

    def _sequence(self) -> _Part:
        part = _Part()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            part = self._joined(part, self._repeated())
        return part

    def _joined(self, part: _Part, other: _Part) -> _Part:
        self._lead(part.last, other.first)
        return _Part(
            part.first + (other.first if part.is_empty else []),
            other.last + (part.last if other.is_empty else []),
            part.is_empty and other.is_empty,
            part.is_surely_empty and other.is_surely_empty,
            other.sure | (part.sure if other.is_surely_empty else set()),
        )

    def _lead(self, places: Sequence[int], others: Sequence[int]) -> None:
        if len(self.edges) + len(places) * len(others) > _MAX_EDGES:
            raise PatternError("more ways than are followed")
        self.edges.update((place, other) for place in places for other in others)

    def _repeated(self, limit: int | None = None) -> _Part:
        """An item with the numbers of times behind it; several times "between n and m" is as good as without end.

        limit: where in the text no further numbers are looked for.
        """
        begin = self._at
        part = self._item()
        end = self._at
        while self._at != limit and (bounds := self._bounds()):
            least, most = bounds
            if most is not None and least == most:
                part = self._copies(begin, end, part, least)
            elif most == 1:
                part.is_empty = part.is_surely_empty = True
            elif part.is_empty:  # which can be left in two ways wherever it ends
                raise PatternError("a loop over what may be nothing")
            else:
                self._lead(part.last, part.first)
                if least == 0:
                    part.is_empty = part.is_surely_empty = True
            end = self._at
        return part

    def _bounds(self) -> tuple[int, int | None] | None:
        """The least and the most times that are asked for next; None where nothing is."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._at < len(self._text) and (bounds := simple.get(self._text[self._at])):
            self._at += 1
            self._takes("?") or self._takes("+")  # least first, or never given back: not more ways than without
            return bounds
        found = _COUNT.match(self._text, self._at)
        if found is None or not (found[1] or found[3]):
            return None
        self._at = found.end()
        self._takes("?")
        least = int(found[1] or 0)
        return least, (int(found[3]) if found[3] else None) if found[2] else least

    def _copies(self, begin: int, end: int, part: _Part, number: int) -> _Part:
        if number == 0:
            return _Part()
        if number > _MAX_COPIES:
            raise PatternError("more than is followed")
        after = self._at
        for _ in range(number - 1):
            self._at = begin
            part = self._joined(part, self._repeated(end))
        self._at = after
        return part

    def _item(self) -> _Part:
        self._num_items += 1
        if self._num_items > _MAX_ITEMS:
            raise PatternError("longer than is followed")
        if self._takes("("):
            return self._group()
        if self._takes("^") or self._takes("$"):
            return _Part(is_surely_empty=False)
        begin = self._at
        if self._text[begin] == "[":
            self._at = _class_end(self._text, begin)
        elif self._text[begin] == "\\":
            return self._escaped()
        else:
            self._at += 1
        return self._place(self._text[begin : self._at])

    def _escaped(self) -> _Part:
        found = _ESCAPE.match(self._text, self._at)
        if found is None:
            raise PatternError("a backslash at the end")
        if found[0][1] in _NOT_FOLLOWED:
            raise PatternError("a reference")
        self._at = found.end()
        if found[0][1] in _ANCHORS:
            return _Part(is_surely_empty=False)
        if found[0][1] in "XR":  # one character or several
            part = self._place(_ANY)
            self.edges[part.first[0], part.first[0]] += 1
            return part
        return self._place(found[0])

    def _group(self) -> _Part:
        self._depth += 1
        flags = self._flags
        if self._depth > _MAX_DEPTH:
            raise PatternError("deeper than is followed")
        kind = ""
        if self._text.startswith("?", self._at):
            found = _GROUP.match(self._text, self._at)
            if found is None:
                raise PatternError("a group of a kind that is not followed")
            self._at = found.end()
            kind = found[1] or ""
            if found[3]:
                self._flags = "(?i)" if "i" in (found[2] or "") else flags
            if found[3] == ")":  # for the rest of the group around it
                self._depth -= 1
                return _Part()
        part = self._choice()
        if not self._takes(")"):
            raise PatternError("a bracket that is not closed")
        self._flags = flags
        self._depth -= 1
        if kind in ("=", "!", "<=", "<!"):
            self.sure |= part.sure
            return _Part(is_surely_empty=False)
        return part

    def _place(self, atom: str) -> _Part:
        number = len(self.atoms)
        if number == _MAX_PLACES:
            raise PatternError("longer than is followed")
        self.atoms.append(self._flags + atom)
        return _Part([number], [number], False, False, {number})

    def _takes(self, character: str) -> bool:
        if self._text.startswith(character, self._at):
            self._at += 1
            return True
        return False


def _class_end(text: str, begin: int) -> int:
    """Where a class of characters ends that begins with "[", which may hold others."""
    at = begin + 1 + text.startswith("^", begin + 1)
    at += text.startswith("]", at)  # a first one is a character
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text.startswith("[:", at) and (end := text.find(":]", at)) > 0:
            at = end + 1
        elif text[at] == "[":
            at = _class_end(text, at) - 1
        elif text[at] == "]":
            return at + 1
        at += 1
    raise PatternError("a class that is not closed")
