"""What an argument may be that is written without quotes, where only its schema tells a text from a number."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_MAX_DEPTH = 16  # of choices and references
_MAX_KINDS = 64
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

    root: the schema in which references are looked up. Empty where there are too many to tell.
    """
    kinds: list[Schema] = []
    for kind in _kinds(schema, root, 0):
        if len(kinds) == _MAX_KINDS:
            return []
        kinds.append(kind)
    return kinds


def properties_of(parameters: Schema) -> Schema:
    """The schemas of a tool's arguments by name."""
    (described, *_) = kinds_of(parameters, parameters) or [{}]  # which may stand behind a reference
    properties = described.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _kinds(schema: object, root: Schema, depth: int) -> Iterator[Schema]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        yield {}
        return
    parts: object = next((schema[name] for name in ("anyOf", "oneOf") if name in schema), None)
    match schema:
        case {"$ref": str(name)}:
            parts = [_referred(name, root)]
        case {"allOf": [only]}:
            parts = [only]
        case {"type": list(types)}:
            parts = [{**schema, "type": each} for each in types]
    if not isinstance(parts, list):
        yield schema
        return
    for part in parts:
        yield from _kinds(part, root, depth + 1)


def _referred(name: str, root: Schema) -> object:
    """What a reference within the schema names; None where it names nothing there."""
    found: object = root
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
