"""Types of tool arguments written without quotes, where only the tool's JSON schema tells a string from a number."""

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from reader_edge_runtime.text.tool_calls.schema_reference import Schema, referred

_MAX_VISITED = 256  # schemas on the way to what a value may be
_MAX_TOGETHER = 64  # schemas that a value must follow at once
_MAX_VALUES = 1 << 16  # listed ones, of all kinds that a value may be
_MAX_PATTERNS = 16  # that a name is compared with
_MAX_PATTERN = 200  # characters
_MAX_NAME = 64  # characters, of what a pattern is compared with
_MAX_TRIES = 10**6
_REPEATED_GROUP = re.compile(r"\)[*+?{]")  # which may take a time that doubles with each character
_REPEATS = re.compile(r"[*+?{]")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_BRANCHES = (("then", False), ("else", True))  # with the condition by which they never count
# What schemas ask beside references, choices and `allOf`.
_OF_TEXTS = ("pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType")
_OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OF_ARRAYS = ("items", "prefixItems", "additionalItems", "contains", "minItems", "maxItems", "uniqueItems")
_OF_KEYS = ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")
_OF_OBJECTS = (*_OF_KEYS, "required", "propertyNames", "minProperties", "maxProperties", "dependentRequired")
_NO_TEXTS = (*_OF_NUMBERS, *_OF_ARRAYS, *_OF_OBJECTS)
_READ_KEYWORDS = ("type", "const", "enum", "not", "if", "then", "else", "dependentSchemas", *_OF_TEXTS, *_NO_TEXTS)
_NUMBER_FORMAT = re.compile(r"u?int\d*|float\d*|double|decimal\d*")

Roots = Sequence[Sequence[Schema]]  # what holds together of each of several choices


@dataclass(frozen=True, slots=True)
class _Choice:
    """facts: what a value must follow, by the place of its schema in memory.

    left: schemas that are not looked at yet, and tuples of those of which one counts.
    """

    facts: Mapping[int, Schema]
    left: Mapping[object, object]

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[object, ...]]:
        return tuple(self.facts), tuple(self.left)


def kinds_of(schema: object, root: Schema) -> list[Schema]:
    """The schemas of which a value follows one, without `allOf`, `anyOf`, `oneOf`, references and lists of types.

    root: the schema in which references are looked up. What stands beside references and choices holds for each of
    them. Of too many choices only what stands beside them is a kind, with the choices; empty where that gives no type.
    """
    kinds, sure = _followed(schema, root)
    if kinds is not None:
        return kinds
    return [ChainMap(kind, _mapping(schema)) for kind in _kinds(sure) if "type" in kind]  # type: ignore[arg-type]


def _followed(schema: object, root: Schema) -> tuple[list[Schema] | None, Mapping[int, Schema]]:
    """The kinds of value of a schema, None where there are too many choices, and what holds for all of them."""
    left, kinds = [_Choice({}, {id(schema): schema})], list[Schema]()
    sure, visited = left[0].facts, {left[0].key}
    num_values = 0
    while left:
        choice = left.pop()
        sure = sure if left or kinds else choice.facts
        for other in reversed(_choices(choice, root)):
            if not other.left:
                num_values += sum(len(listed(fact) or ()) for fact in other.facts.values()) if kinds else 0
                kinds += _kinds(other.facts) if num_values <= _MAX_VALUES else ()
            elif other.key not in visited:
                visited.add(other.key)
                left.append(other)
            if len(visited) > _MAX_VISITED or len(other.left) > _MAX_TOGETHER or num_values > _MAX_VALUES:
                return None, sure
    return kinds, sure


def _choices(choice: _Choice, root: Schema) -> list[_Choice]:
    """What a choice becomes once the first of its schemas is looked at."""
    (place, schema), *others = choice.left.items()
    if isinstance(schema, tuple):
        return [_Choice(choice.facts, {id(part): part, **dict(others)}) for part in schema]
    if schema is False:
        return []
    if not isinstance(schema, Mapping):
        return [_Choice(choice.facts, dict(others))]
    together = [referred(name, root) for each in _REFERENCES if isinstance(name := schema.get(each), str)]
    together += _listed(schema, "allOf")
    united = {(place, number): parts for number, parts in enumerate(_united(schema))}
    own = {name: schema[name] for name in _READ_KEYWORDS if name in schema} if together or united else schema
    facts = {**choice.facts, id(schema): own} if own else choice.facts
    left: dict[object, object] = {id(part): part for part in together if id(part) not in facts}
    return [_Choice(facts, left | dict(others) | united)]  # those that multiply last


def _listed(schema: Schema, name: str) -> list[object]:
    parts = schema.get(name)
    return parts[: _MAX_VISITED + 1] if isinstance(parts, list) else []


def _united(schema: Schema) -> Iterator[tuple[object, ...]]:
    """Schemas of which a value follows one of each."""
    yield from (tuple(_listed(schema, name)) for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list))
    if (condition := schema.get("if")) is not None:
        yield tuple(schema.get(name, True) for name, never in _BRANCHES if condition is not never)
    for part in islice(_mapping(schema.get("dependentSchemas")).values(), _MAX_TOGETHER):
        yield (part, True)


def _kinds(facts: Mapping[int, Schema]) -> Iterator[Schema]:
    """What follows all of these schemas, one for each type."""
    types: list[str] | None = None
    values: list[Any] | None = None
    for fact in facts.values():
        values = _shared(values, listed(fact))
        types = _narrowed(types, _types(fact))
    if types is None and values is None and any(map(_is_of_texts, facts.values())):
        types = ["string"]
    kind: ChainMap[str, Any] = ChainMap({}, *facts.values())  # type: ignore[arg-type]  # too large to copy for each
    for name in types or ():
        if values is None:
            yield kind.new_child({"type": name})
        elif of_type := [value for value in values if name not in _TYPES or type(value) in _TYPES[name]]:
            yield kind.new_child({"type": name, "enum": of_type})
    if types is None and values != []:
        yield kind if values is None else kind.new_child({"enum": values})


def _types(schema: Schema) -> list[str] | None:
    """The types that a schema gives; None where it gives none."""
    types = schema.get("type")
    if isinstance(types, str):
        return [types]
    return [name for name in types[: len(_TYPES)] if isinstance(name, str)] if isinstance(types, list) else None


def _narrowed(types: list[str] | None, others: list[str] | None) -> list[str] | None:
    if types is None or others is None:
        return others if types is None else types
    both = [name for name in types if name in others or (name == "integer" and "number" in others)]
    return both + ["integer"] * ("integer" in others and "number" in types and "integer" not in types)


def _shared(values: list[Any] | None, others: list[Any] | None) -> list[Any] | None:
    if values is None or others is None:
        return others if values is None else values
    seen = {repr(value) for value in others}
    return [value for value in values if repr(value) in seen]


def _is_of_texts(schema: Schema) -> bool:
    """Whether a schema without a type asks what only texts have."""
    names = [name for name in _OF_TEXTS if name in schema]
    is_number = names == ["format"] and _NUMBER_FORMAT.fullmatch(str(schema["format"])) is not None
    return bool(names) and not is_number and not any(name in schema for name in _NO_TEXTS)


def arguments_of(roots: Roots) -> list[str]:
    """The names of a tool's declared arguments."""
    parts = {id(part): part for root in roots for part in root}
    return list(dict.fromkeys(name for part in parts.values() for name in _mapping(part.get("properties"))))


def argument_of(roots: Roots, name: str) -> object:
    """The schema of a tool's argument; None where nothing is declared of it."""
    parts, tries = {id(part): part for root in roots for part in root}, count()
    declared = {place: _declared(part, name, tries) for place, part in parts.items()}
    ways = [[schema for part in root for schema in declared[id(part)]] for root in roots]
    distinct = {tuple(map(id, way)): {"allOf": way} if way[1:] else way[0] for way in ways if way}
    schemas = list(distinct.values())
    return {"anyOf": schemas} if schemas[1:] else next(iter(schemas), None)


def roots_of(parameters: Schema) -> Roots:
    """What the arguments may follow, as schemas that hold together; all by themselves where there are too many."""
    kinds, _ = _followed(parameters, parameters)
    roots = _reached(parameters) if kinds is None else [kind for kind in kinds if isinstance(kind, ChainMap)]
    ways = [[part for part in root.maps if part.keys() & set(_OF_KEYS)] for root in roots]
    return list({tuple(map(id, way)): way for way in ways}.values())


def _reached(parameters: Schema) -> list[ChainMap[str, Any]]:
    left: dict[object, object] = {id(parameters): parameters}
    facts, seen = dict[int, Schema](), set[object]()
    while left and len(seen) <= _MAX_VISITED:
        place = next(iter(left))
        seen.add(place)
        for choice in _choices(_Choice({}, {place: left.pop(place)}), parameters):
            facts |= choice.facts
            left |= {place: part for place, part in choice.left.items() if place not in seen}
    return [ChainMap(schema) for schema in facts.values()]  # type: ignore[arg-type]


def _declared(schema: Schema, name: str, tries: Iterator[int]) -> list[object]:
    """What a schema of an object asks of the value with this name. tries: counts patterns that it is compared with."""
    properties, patterns = _mapping(schema.get("properties")), _mapping(schema.get("patternProperties"))
    first = islice(patterns.items(), _MAX_PATTERNS)
    found = [properties[name]] if name in properties else []
    found += [part for pattern, part in first if next(tries) >= _MAX_PATTERNS or _may_match(pattern, name)]
    others = [schema.get(rest) for rest in ("additionalProperties", "unevaluatedProperties")]
    return found or [part for part in others if isinstance(part, Mapping)]


def _may_match(pattern: str, name: str) -> bool:
    """Whether a name matches, or that cannot be decided in few tries."""
    tries = _MAX_NAME ** (1 + len(_REPEATS.findall(pattern[:_MAX_PATTERN])))
    tries *= (1 + pattern.count("|")) ** pattern[:_MAX_PATTERN].count("(")
    if len(pattern) > _MAX_PATTERN or len(name) > _MAX_NAME or tries > _MAX_TRIES or _REPEATED_GROUP.search(pattern):
        return True
    try:
        return re.search(pattern, name) is not None
    except (re.error, OverflowError, RecursionError):
        return True


def _mapping(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}


def listed(kind: Schema) -> list[Any] | None:
    """The values that a kind lists; None where it lists none."""
    values = [kind["const"]] if "const" in kind else kind.get("enum")
    return values if isinstance(values, list) else None


def is_text(kind: Schema) -> bool:
    """Whether a kind is any text, as far as its type tells."""
    return kind.get("type") == "string" and listed(kind) is None


def takes(kind: Schema, value: object) -> bool:
    """Whether a value is of a kind, as far as its types and listed values tell, and those that it excludes."""
    values, types, excluded = listed(kind), _types(kind), kind.get("not")
    is_plain = isinstance(excluded, Mapping) and bool(excluded) and not excluded.keys() - {"type", "const", "enum"}
    if is_plain and takes(_mapping(excluded), value):
        return False
    if values is not None:
        return any(type(each) is type(value) and each == value for each in values)
    return types is None or any(name not in _TYPES or type(value) in _TYPES[name] for name in types)
