"""Strings of a JSON schema as llguidance enforces them: formats wider than the standards, its regexes Rust's."""

import re
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
Note = Callable[[str], None]

_DAY = "(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP = "(?:[0-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # no reader has a year 0000
_DATE = f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,30}"  # at most 61 characters of the 63 that it may have
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_LETTER = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
# In place of the library's own: leap days alone in leap years, no leap seconds, lengths as hosts have them.
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "hostname": _HOST,
    "email": rf"{_LETTER}(?:\.?{_LETTER}){{0,31}}@{_HOST}",
}
_MAX_LENGTH = {"hostname": 253, "email": 254}
_LIBRARY_FORMATS = frozenset({"duration", "ipv4", "ipv6", "uuid", "uri"})
_PART = re.compile(
    r"\[\^?(?:\\.|[^\]\\])*\]|\\[pP](?:\{[^}]*\}|.)|\\[xuU]\{[^}]*\}|\\x..|\\u.{4}|\\U.{8}|\\.|.", re.DOTALL
)
_OPERATOR = re.compile(r"\\.|[\[&~|]", re.DOTALL)  # which are, or may become, some of classes in Rust and in Python
_BRACED = re.compile(r"\\[xuU]\{([0-9a-fA-F]{1,6})\}")
# Properties without the zero byte, and such that are not there without quotes or backslashes.
_PROPERTY = re.compile(
    r"\\p(?:[LMNPSZ]|\{(?!(?i:c|cc|other|control|cntrl)\})\w+\}|\{(?:sc|Script)=\w+\})"
    r"|\\P(?:[CLMNSZ]|\{[CLMNSZ][a-z]?\})"
)


def enforce_texts(schema: Schema, note: Note, is_readable: Callable[[str], bool]) -> None:
    """Patterns and formats of a schema, in place. is_readable: whether the library reads a pattern."""
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = rust_pattern(schema["pattern"])
        if not is_enforced(schema["pattern"], is_readable):
            note(f"'pattern' {schema.pop('pattern')!r:.80}")
    name = schema.get("format")
    if not isinstance(name, str) or name in _LIBRARY_FORMATS or not _may_be_text(schema):
        return
    del schema["format"]
    if name not in _FORMATS:
        note(f"'format' {name!r:.80}")
        return
    pattern = f"^(?:{_FORMATS[name]})$"
    if name in _MAX_LENGTH:
        schema["maxLength"] = min(schema.get("maxLength", _MAX_LENGTH[name]), _MAX_LENGTH[name])
    if "pattern" not in schema:
        schema["pattern"] = pattern
    else:
        schema["allOf"] = [*schema.get("allOf", []), {"pattern": pattern}]


def _may_be_text(schema: Schema) -> bool:
    kinds = schema.get("type", "string")
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def rust_pattern(pattern: str) -> str:
    """A pattern of JavaScript's syntax, as schemas have it, in Rust's, whose classes have operators.

    Negated classes are without the zero byte: the library lets quotes and backslashes into classes of all control
    characters.
    """
    return "".join(_rust_class(part, r"\x00") if part.startswith("[") else part for part in _PART.findall(pattern))


def _rust_class(part: str, more: str) -> str:
    """A class without operators. more: what a negated one excludes besides."""
    if part in ("[", "[]", "[^]"):  # nothing, and any character
        return {"[": "[", "[]": r"[^\s\S]", "[^]": r"[\s\S]"}[part]
    start = 2 if part.startswith("[^") else 1
    inner = _OPERATOR.sub(lambda found: found[0] if len(found[0]) > 1 else "\\" + found[0], part[start:-1])
    hyphen = "\\" if more and inner.startswith("-") else ""  # which is a character of the class
    return f"[{inner}]" if start == 1 else f"[^{more}{hyphen}{inner}]"


def is_enforced(pattern: str, is_readable: Callable[[str], bool]) -> bool:
    """Whether the library enforces a pattern of Rust's syntax."""
    return _is_quoted(pattern) and is_readable(pattern)


def _is_quoted(pattern: str) -> bool:
    """Whether the library enforces which of a pattern's characters are quotes and backslashes. pattern: of Rust's."""
    for part in _PART.findall(pattern):
        if part.startswith("["):
            if "--" in part:  # an operator, or a range
                return False
        elif part != "\0" and part[:2] not in (r"\x", r"\u", r"\U", r"\p", r"\P"):
            continue
        text = _PROPERTY.sub("a", _BRACED.sub(lambda found: f"\\U{int(found[1], 16):08x}", part))
        if part.startswith("[^"):
            continue
        try:
            takes_zero, *takes_marks = (re.fullmatch(text, character) is not None for character in '\0"\\')
        except re.error:
            return False
        if takes_zero and not all(takes_marks):
            return False
    return True


def python_pattern(pattern: str) -> str:
    """A pattern of JavaScript's syntax in Python's: classes are of ASCII, and `$` is the end alone."""
    pattern = "".join(_rust_class(part, "") if part.startswith("[") else part for part in _PART.findall(pattern))
    parts, is_class = [], False
    classes = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}
    for part in re.findall(r"\\.|.", pattern, re.DOTALL):
        if part in "[]":
            is_class = part == "["
        elif part in classes:
            part = classes[part] if is_class else f"[{classes[part]}]"
        elif part in (r"\D", r"\W") and not is_class:
            part = f"[^{classes[part.lower()]}]"
        elif part == "$" and not is_class:
            part = r"\Z"
        parts.append(part)
    return "".join(parts)
