"""JSON from outside, held to classes that state the type and the bounds of each field; what does not fit is named.

The classes are dataclasses or msgspec's. A field that they do not have is ignored, but for structs that forbid it.
"""

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.untrusted.plain_file import check_plain_file
from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK, short_repr

Kind = TypeVar("Kind")

# All that has a glyph, and the space: no escape sequences, line breaks, or marks that turn the direction of writing.
PRINTABLE = (
    r"\A[^\x00-\x1f\x7f-\xa0\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u1680\u180e\u2000-\u200f\u2028-\u202f"
    r"\u205f-\u206f\u3000\ud800-\uf8ff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U00013438\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0001-\U000e007f\U000f0000-\U0010ffff]*\Z"
)

Text = Annotated[str, Meta(max_length=4096, pattern=PRINTABLE)]
Figure = float | Annotated[int, Meta(gt=-(1 << 53), lt=1 << 53)]  # a finite number that a float holds
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]

_ERROR = re.compile(r"(?P<words>.*?)(?: - at `(?P<key>key` in `)?\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def one_of(*names: str) -> Meta:
    """What a text must be one of."""
    return Meta(pattern=rf"\A(?:{'|'.join(map(re.escape, names))})\Z", description=f"one of {', '.join(names)}")


def read_json(path: Path, error: type[ReaderEdgeError], remedy: str, max_bytes: int) -> Any:
    """The values of a plain file, which are not checked yet. Raises `error` for a larger one, or one that is not JSON.

    JSON has neither NaN nor infinite numbers, nor halves of characters.
    """
    data = read_plain(path, error, remedy, max_bytes)
    return decoded(data.removeprefix(BYTE_ORDER_MARK), f"'{path}'", error, remedy)


def read_plain(path: Path, error: type[ReaderEdgeError], remedy: str, max_bytes: int) -> bytes:
    """The content of a plain file. Raises `error` for a larger one."""
    check_plain_file(path, error, remedy)
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise error(f"'{path}' has more than the {max_bytes} bytes that it may have: {remedy}.")
    return data


def decoded(data: bytes, name: str, error: type[ReaderEdgeError], remedy: str) -> Any:
    """name: what the sentence begins with. Raises `error` for what is not JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        raise error(f"{name} is not valid JSON ({reason}): {remedy}.") from None


def converted(values: object, kind: type[Kind], name: str, error: type[ReaderEdgeError], remedy: str) -> Kind:
    """An object of a class. Raises `error`, whose one sentence has the place, the value and what is expected there."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as reason:
        try:
            fault = _fault(str(reason), values, kind)
        except (LookupError, TypeError, AttributeError, StopIteration):  # of a name that looks like a place
            fault = "is unusable"
        raise error(f"{name} {fault}: {remedy}.") from None
    except UnicodeEncodeError:  # of what Python's own parser lets through
        raise error(f"{name} has a text with half a character: {remedy}.") from None


def _fault(error: str, values: Any, kind: type) -> str:
    """In words, what is wrong with values that msgspec found no object of this class, of which only this is left."""
    found = _ERROR.fullmatch(error)
    assert found is not None
    place, value = "", values
    for name, index in _STEP.findall(found["path"] or ""):
        if index == "...":
            key, value = _first_wrong(value, error, values, kind)
            place += f"[{key!r:.40}]"
        elif name:
            place, value = f"{place}.{name}", value[name]
        else:
            place, value = f"{place}[{index}]", value[int(index)]
    words = found["words"]
    if field := _FIELD.fullmatch(words):
        place, value, words = f"{place}.{field[1]}", None, ""
    elif unknown := _UNKNOWN.fullmatch(words):
        place, value, words = f"name in {place or 'it'}", unknown[1], "there is no such field"
    elif found["key"]:
        place, value = f"name in {place}", _first_wrong(value, error, values, kind)[0]
    wanted = "" if "regex" in words or words.startswith("Invalid") else words.replace("`", "").replace("Exp", "exp", 1)
    place = re.sub(r"(^| )\.", r"\1", place)
    shown_value = "; ".join(filter(None, (short_repr(value), wanted)))
    return f"has an unusable {place} ({shown_value})" if place else f"is unusable ({wanted})"


def _first_wrong(entries: dict[str, Any], error: str, values: Any, kind: type) -> tuple[str, Any]:
    """The entry of a mapping that msgspec refused, which it does not name; the others are taken out of `values`."""
    while len(entries) > 1:
        every = list(entries.items())
        half = len(every) // 2
        entries.clear()
        entries.update(every[:half])
        try:
            msgspec.convert(values, kind)
            is_there = False
        except msgspec.ValidationError as reason:
            is_there = str(reason) == error
        if not is_there:
            entries.clear()
            entries.update(every[half:])
    return next(iter(entries.items()))


def load_finite(text: str) -> Any:
    """JSON without the numbers that Python adds: NaN and those beyond all. Raises ValueError and RecursionError."""
    return json.loads(text, parse_float=finite, parse_constant=finite)


def finite(text: str) -> float:
    """Raises ValueError."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
