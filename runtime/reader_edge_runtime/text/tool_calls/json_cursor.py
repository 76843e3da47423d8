"""Where in a JSON value an unfinished text has come to, so that what may follow can be drafted."""

from dataclasses import dataclass, field
from enum import Enum, auto

MAX_DEPTH = 16
_MAX_SCALARS = 64
_SPACE = " \n\t\r"
_ENDS = ",]}" + _SPACE


class CursorPlace(Enum):
    """What is due, or has begun."""

    VALUE = auto()
    STRING = auto()
    SCALAR = auto()  # a number or literal
    KEY = auto()  # or an object's end
    IN_KEY = auto()
    COLON = auto()
    AFTER = auto()  # behind a value in an object or array
    DONE = auto()
    LOST = auto()  # this is no JSON, or deeper than is followed


@dataclass(slots=True)
class Container:
    """An object or array that has not ended. keys: of an object, as written, that of the value to come last."""

    is_object: bool
    keys: list[str] = field(default_factory=list)


class JsonCursor:
    """Reads on character by character; commas before an end are let pass.

    begun: raw characters of the key, string, number or literal that has begun. gaps: the last space behind
    a colon and a comma. gap: the space since the last of these; None behind anything else. scalars: raw
    strings, numbers and literals that have ended, by path.
    """

    def __init__(self) -> None:
        self.place = CursorPlace.VALUE
        self.containers: list[Container] = []
        self.begun = ""
        self.gaps = {":": " ", ",": " "}
        self.gap: str | None = None
        self.scalars: dict[tuple[str, ...], str] = {}
        self._separator = ","
        self._is_escaped = False

    def copy(self) -> "JsonCursor":
        other = JsonCursor()
        other.place, other.begun, other.gap = self.place, self.begun, self.gap
        other._separator, other._is_escaped = self._separator, self._is_escaped
        other.containers = [Container(each.is_object, [*each.keys]) for each in self.containers]
        other.gaps, other.scalars = dict(self.gaps), dict(self.scalars)
        return other

    @property
    def path(self) -> tuple[str, ...]:
        """Of the value that is due or has begun: keys, "" for an item of an array."""
        return tuple((each.keys[-1] if each.keys else "") if each.is_object else "" for each in self.containers)

    def feed(self, text: str) -> str:
        """Read a text. Returns what is left of it behind the value's end."""
        for at, character in enumerate(text):
            if self.place in (CursorPlace.DONE, CursorPlace.LOST):
                return text[at:]
            self._read(character)
        return ""

    def _read(self, character: str) -> None:
        match self.place:
            case CursorPlace.STRING | CursorPlace.IN_KEY:
                self._read_string(character)
            case CursorPlace.SCALAR:
                if character in _ENDS:
                    self._end_scalar()
                    self._read(character)
                else:
                    self.begun += character
            case _ if character in _SPACE:
                if self.gap is not None:
                    self.gap += character
            case _:
                self._read_mark(character)

    def _read_string(self, character: str) -> None:
        if character != '"' or self._is_escaped:
            self._is_escaped = character == "\\" and not self._is_escaped
            self.begun += character
        elif self.place is CursorPlace.STRING:
            self.begun = f'"{self.begun}"'
            self._end_scalar()
        else:
            self.containers[-1].keys.append(self.begun)
            self.place, self.begun = CursorPlace.COLON, ""

    def _read_mark(self, character: str) -> None:
        """A character between strings, numbers and literals that is no space."""
        if self.gap is not None:
            self.gaps[self._separator], self.gap = self.gap, None
        inner = self.containers[-1] if self.containers else None
        match self.place, character:
            case CursorPlace.KEY, '"':
                self.place = CursorPlace.IN_KEY
            case CursorPlace.COLON, ":":
                self._separate(":", CursorPlace.VALUE)
            case CursorPlace.VALUE, '"':
                self.place = CursorPlace.STRING
            case CursorPlace.VALUE, "{" | "[" if len(self.containers) < MAX_DEPTH:
                self.containers.append(Container(character == "{"))
                self.place = CursorPlace.KEY if character == "{" else CursorPlace.VALUE
            case CursorPlace.AFTER, "," if inner is not None:
                self._separate(",", CursorPlace.KEY if inner.is_object else CursorPlace.VALUE)
            case (CursorPlace.AFTER | CursorPlace.KEY, "}") if inner is not None and inner.is_object:
                self._close()
            case (CursorPlace.AFTER | CursorPlace.VALUE, "]") if inner is not None and not inner.is_object:
                self._close()
            case CursorPlace.VALUE, _ if character in "-0123456789tfn":
                self.place, self.begun = CursorPlace.SCALAR, character
            case _:
                self.place = CursorPlace.LOST

    def _separate(self, separator: str, place: CursorPlace) -> None:
        self._separator, self.gap, self.place = separator, "", place

    def _end_scalar(self) -> None:
        if len(self.scalars) < _MAX_SCALARS:
            self.scalars[self.path] = self.begun
        self.begun = ""
        self._end_value()

    def _close(self) -> None:
        self.containers.pop()
        self._end_value()

    def _end_value(self) -> None:
        self.place = CursorPlace.AFTER if self.containers else CursorPlace.DONE
