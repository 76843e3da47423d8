"""Follows `$ref` within a tool's JSON schema: by JSON pointer, by anchor or by the identifier of a part."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

Schema = Mapping[str, Any]

_MAX_REFERENCE = 1000  # characters
_MAX_SEARCHED = 1000  # parts of the schema that an anchor or an identifier is looked for in
_VALUES = ("const", "enum", "default", "examples")  # which hold no schemas


def referred(reference: str, root: Schema) -> object:
    """What a reference names in the schema of that root; None where it names nothing there."""
    if len(reference) > _MAX_REFERENCE:
        return None
    address, _, fragment = reference.partition("#")
    found: object = _identified(address, root) if address else root
    name = unquote(fragment)
    if name and not name.startswith("/"):
        return next((part for part in _parts(found) if name in _anchors(part)), None)
    for step in name.split("/")[1:]:
        found = _below(found, step.replace("~1", "/").replace("~0", "~"))
    return found


def _below(part: object, step: str) -> object:
    if isinstance(part, list):
        is_place = step.isdecimal() and len(step) < len(str(_MAX_SEARCHED)) and int(step) < len(part)
        return part[int(step)] if is_place else None
    return part.get(step) if isinstance(part, Mapping) else None


def _identified(address: str, root: Schema) -> object:
    base = _identifier(root)
    wanted = _joined(base, address)
    return next((part for part in _parts(root) if _joined(base, _identifier(part)) == wanted), None)


def _identifier(part: Schema) -> str:
    name = part.get("$id")
    return name.removesuffix("#") if isinstance(name, str) and len(name) <= _MAX_REFERENCE else ""


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address)
    except ValueError:  # as of brackets that are no address
        return address


def _anchors(part: Schema) -> Iterator[object]:
    yield from (part.get("$anchor"), part.get("$dynamicAnchor"))
    name = part.get("$id")  # which has anchors up to draft 7
    yield name[1:] if isinstance(name, str) and name.startswith("#") else None


def _parts(schema: object) -> Iterator[Schema]:
    """A schema and those within it, definitions first, up to a bound."""
    left, searched = deque([schema]), 0
    while left and searched < _MAX_SEARCHED:
        part = left.popleft()
        searched += 1
        if isinstance(part, list):
            left.extend(part[:_MAX_SEARCHED])
        elif isinstance(part, Mapping):
            yield part
            for name, within in list(part.items())[:_MAX_SEARCHED]:
                if isinstance(within, (Mapping, list)) and name not in _VALUES:
                    (left.appendleft if name in ("$defs", "definitions") else left.append)(within)
