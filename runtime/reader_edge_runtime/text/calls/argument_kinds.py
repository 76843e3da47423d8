"""What an argument may be that is written without quotes, where only its schema tells a text from a number."""

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

_MAX_KINDS = 64
_MAX_VISITED = 256  # choices, references and lists of types on the way to them
_MAX_REFERENCE = 1000  # characters
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def kinds_of(schema: object, root: Schema) -> list[Schema]:
    """The schemas of which a value follows one, without `anyOf`, `oneOf`, references and lists of types.

    root: the schema in which references are looked up. Each choice counts once, however often it is referred to. Empty
    where there are too many to tell.
    """
    kinds: list[Schema] = []
    left, visited = [schema], dict[int, Schema]()
    while left:
        part = left.pop()
        if not isinstance(part, Mapping):
            kinds.append({})
        elif id(part) not in visited:
            visited[id(part)] = part
            parts = _parts(part, root)
            left += [] if parts is None else parts[: _MAX_VISITED + 1][::-1]
            kinds += [part] if parts is None else []
        if len(kinds) > _MAX_KINDS or len(visited) > _MAX_VISITED:
            return []
    return kinds


def properties_of(parameters: Schema) -> Schema:
    """The schemas of a tool's arguments by name."""
    (described, *_) = kinds_of(parameters, parameters) or [{}]  # which may stand behind a reference
    properties = described.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _parts(schema: Schema, root: Schema) -> list[Any] | None:
    """The schemas that a schema chooses from; None where it says itself what a value is."""
    reference, every, types = (schema.get(name) for name in ("$ref", "allOf", "type"))
    if isinstance(reference, str):
        return [_referred(reference, root)]
    if isinstance(every, list) and len(every) == 1:
        return every
    if isinstance(types, list):  # in front of the schema, which may be too large to copy for each
        return [ChainMap({"type": kind}, schema) for kind in types[: len(_TYPES)]]  # type: ignore[arg-type]
    parts = next((schema[name] for name in ("anyOf", "oneOf") if name in schema), None)
    return parts if isinstance(parts, list) else None


def _referred(name: str, root: Schema) -> object:
    """What a reference within the schema names; None where it names nothing there."""
    found: object = root
    if len(name) > _MAX_REFERENCE:
        return None
    for step in name.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if name.startswith("#") else None


def listed(kind: Schema) -> list[Any] | None:
    """The values that a kind lists; None where it lists none."""
    values = [kind["const"]] if "const" in kind else kind.get("enum")
    return values if isinstance(values, list) else None


def is_text(kind: Schema) -> bool:
    """Whether a kind is any text, as far as its type tells."""
    return kind.get("type") == "string" and listed(kind) is None


def takes(kind: Schema, value: object) -> bool:
    """Whether a value is of a kind, as far as its type and listed values tell."""
    values, types = listed(kind), _TYPES.get(str(kind.get("type")))
    if values is not None:
        return any(type(each) is type(value) and each == value for each in values)
    return types is None or (type(value) in types)
