"""Lark rules for a call's arguments: JSON, or one after another, with texts that have no quotes."""

import json
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any

from reader_edge.server.api_error import ApiError
from reader_edge.server.structured_outputs import check_depth
from reader_edge_runtime.text.tool_calls.argument_kinds import argument_of, is_text, kinds_of, listed, roots_of, takes
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, Notation
from reader_edge_runtime.text.tool_calls.schema_reference import referred

_SPACES = {"item_separator": ", ", "key_separator": ": "}  # as models have seen calls
_OF_TEXTS = " of texts without quotes"
_CHOICES = {"allOf", "anyOf", "oneOf"}  # which are in the kinds
_MAX_COMPARED = 64
_NO_CDATA = r"\s*([^<\s](?s:.*)|<([^!](?s:.*))?)?"  # which would have another end
_NAME = re.compile(r'[^"<>\n]+')
_NOT_TEXTS = ["null", "boolean", "number", "array", "object"]
_OF_ROOT = frozenset({"type", "properties", "required", "additionalProperties", "unevaluatedProperties"})
_OF_LISTED = frozenset({"type", "enum", "const"})
# Keywords that ask something of a value.
_ASKING = frozenset(
    {
        *("$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf"),
        *("const", "else", "enum", "if", "not", "then", "type"),
        *("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"),
        *("format", "maxLength", "minLength", "pattern"),
        *("additionalItems", "contains", "items", "maxContains", "maxItems", "minContains", "minItems", "prefixItems"),
        *("additionalProperties", "dependencies", "dependentRequired", "dependentSchemas", "maxProperties"),
        *("minProperties", "patternProperties", "properties", "propertyNames", "required"),
        *("unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
    }
)

Json = dict[str, Any]
Kind = Mapping[str, Any]

NO_ARGUMENTS: Json = {"type": "object", "properties": {}, "additionalProperties": False}


def argument_rules(rule: str, function: Json, syntax: CallSyntax, left_out: dict[str, None]) -> Iterator[str]:
    """The rules of a function's arguments. left_out: gets what they do not hold. Raises ApiError."""
    schema = function.get("parameters") or NO_ARGUMENTS
    check_depth(schema, f"The schema of the parameters of '{function['name']}'", "tools")
    is_strict = function.get("strict") is True
    if syntax.notation not in (Notation.XML, Notation.KEYS):
        yield f"{rule}: %json {followed(schema, is_strict)}"
        return
    objects = [kind for kind in kinds_of(schema, schema) if kind.get("type", "object") == "object"]
    properties = {key: value for key, value in _properties(objects).items() if _is_written(key, value)}
    needed = set.intersection(*map(_required, objects)) if objects else set()
    _note(_unenforced_of_root(schema, objects, needed - properties.keys()), is_strict, left_out)
    before, between, _ = syntax.parameter
    roots, names = roots_of(schema), list[str]()
    known: dict[int, list[Kind]] = {}  # kinds by their schemas, which many arguments may refer to
    for number, (key, value) in enumerate(properties.items()):
        requested = _target(argument_of(roots, key), schema)
        if id(requested) not in known:
            known[id(requested)] = kinds_of(requested, schema)
            _note(_unenforced_of_value(value, known[id(requested)], schema), is_strict, left_out)
        name = f"{rule}p{number}"
        names.append(name if key in needed else f"{name}?")
        yield f"{name}: {spelled(before + key + between, syntax)} {name}v"
        yield from _value(f"{name}v", value, known[id(requested)], schema, syntax, is_strict)
    yield f"{rule}: {' '.join(names) or json.dumps('')}"


def _note(unheld: Iterator[str], is_strict: bool, left_out: dict[str, None]) -> None:
    """Raise ApiError for the first thing that is not held of a strict schema; of others all are left out."""
    for words in unheld:
        if is_strict:
            raise ApiError(
                400,
                "This model writes arguments one after another and texts without quotes, where "
                f"{words.removesuffix(_OF_TEXTS)} cannot be held: leave it out.",
                "tools",
            )
        left_out[words] = None


def _target(schema: object, root: Json) -> object:
    """What a schema stands for that is a reference and asks nothing else."""
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and not schema.keys() & _ASKING:
        return referred(schema["$ref"], root)
    return schema


def _is_written(key: str, schema: object) -> bool:
    """Whether there may be such an argument, which is then read as it was written."""
    return schema is not False and _NAME.fullmatch(key) is not None and key == key.strip()


def _maps(kind: Kind) -> Sequence[Kind]:
    return kind.maps if isinstance(kind, ChainMap) else [kind]


def _properties(objects: Sequence[Kind]) -> Json:
    found: Json = {}
    for each in {id(each): each for each in chain(*map(_maps, objects))}.values():
        listed_here = each.get("properties")
        for key, value in listed_here.items() if isinstance(listed_here, dict) else ():
            found.setdefault(key, value)
    return found


def _required(kind: Kind) -> set[str]:
    given = [each.get("required") for each in _maps(kind)]
    return {key for keys in given if isinstance(keys, list) for key in keys if isinstance(key, str)}


def _unenforced_of_root(schema: Json, objects: Sequence[Kind], missing: set[str]) -> Iterator[str]:
    """What is not held of the whole. missing: arguments that are required, but not written."""
    if len(objects) != 1:
        yield "what is not one list of parameters"
    for kind in objects[:_MAX_COMPARED]:
        names = sorted(_ASKING - _OF_ROOT)
        requested = [name for name in names if name in kind or name in schema.keys() - _CHOICES]
        yield from (f"{name!r} of a list of parameters" for name in requested)
        with_keys = [each for each in _maps(kind) if each.get("properties")]
        if len(with_keys) > 1:
            keys = [key for each in with_keys for key in each["properties"]]
            is_open = all(each.get("additionalProperties", True) is True for each in _maps(kind))
            if len(set(keys)) < len(keys) or not is_open:
                yield "'properties' in more than one place"
    yield from (f"'required' of {key!r:.80}, which is not listed or cannot be written" for key in sorted(missing))


def _unenforced_of_value(schema: object, kinds: Sequence[Kind], root: Json) -> Iterator[str]:
    """What is not held of a value that may be a text; others are JSON, of which all is held or reported."""
    is_free = any(map(is_text, kinds))
    texts = [kind for kind in kinds if is_text(kind) or _texts_of(kind)]
    for kind in kinds if is_free else texts:
        held = _OF_LISTED if listed(kind) is not None else frozenset({"type"})
        yield from (f"{name!r}{_OF_TEXTS}" for name in sorted(_ASKING - held) if name in kind)
    values = {id(kind): None if listed(kind) is None else set(map(repr, listed(kind) or ())) for kind in kinds}
    pairs = combinations(kinds[:_MAX_COMPARED], 2)
    are_texts = bool(texts) and any(_overlap(*pair, *(values[id(kind)] for kind in pair)) for pair in pairs)
    if are_texts and '"oneOf"' in json.dumps(_with_definitions({"allOf": [schema]}, root)):
        yield f"'oneOf'{_OF_TEXTS}"


def _overlap(first: Kind, second: Kind, values: set[str] | None, others: set[str] | None) -> bool:
    """Whether a value may be of both kinds, as far as their types and the values that they list tell.

    values, others: those, as they are written.
    """
    if values is not None and others is not None:
        return not values.isdisjoint(others)
    for kind, other in ((first, second), (second, first)):
        if listed(kind) is not None:
            return any(takes({"type": other.get("type")}, value) for value in listed(kind) or ())
    types = {"number" if kind.get("type") == "integer" else kind.get("type") for kind in (first, second)}
    return len(types) == 1 or None in types


def _texts_of(kind: Kind) -> list[str]:
    """The texts that a kind lists."""
    is_one = kind.get("type", "string") == "string"
    return [value for value in listed(kind) or () if isinstance(value, str)] if is_one else []


def _value(
    rule: str, schema: object, kinds: Sequence[Kind], root: Json, syntax: CallSyntax, is_strict: bool
) -> Iterator[str]:
    """A value that is written as it is where it is a text, as JSON otherwise, with what stands behind it."""
    behind = syntax.parameter[2]
    if any(map(is_text, kinds)):  # whatever else it may be is written as some text
        if syntax.has_cdata:
            yield f"{rule}: {rule}t | {rule}c"
            yield f"{rule}t[suffix={json.dumps(behind)}]: /{_NO_CDATA}/"
            yield f"{rule}c[suffix={json.dumps(']]>' + behind)}]: /<!\\[CDATA\\[(?s:.*)/"
        else:
            yield f"{rule}[suffix={json.dumps(behind)}]: /(?s:.*)/"
        return
    described = schema if isinstance(schema, dict) else {}
    texts = list(dict.fromkeys(text for kind in kinds for text in _texts_of(kind)))
    if not texts:
        yield f"{rule}: %json {followed(_with_definitions(described, root), is_strict)} {json.dumps(behind)}"
        return
    words = [json.dumps(text, ensure_ascii=False) for text in texts]
    if any(map(_may_be_other, kinds)):
        words.append(f"{rule}o")
        rest = _with_definitions({"allOf": [described, {"type": _NOT_TEXTS}]}, root)
        yield f"{rule}o: %json {followed(rest, is_strict)}"
    yield f"{rule}: ({' | '.join(words)}) {json.dumps(behind)}"


def _may_be_other(kind: Kind) -> bool:
    """Whether a kind has values that are no texts."""
    values = listed(kind)
    others = {name: value for name, value in kind.items() if name == "type"}
    return values is None or any(not isinstance(value, str) and takes(others, value) for value in values)


def _with_definitions(schema: Json, root: Json) -> Json:
    """A schema with those definitions that it refers to, directly or not."""
    found: Json = {name: {} for name in ("$defs", "definitions")}
    left: list[object] = [schema]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            left += part.values()
            place, _, name = str(part.get("$ref", "")).removeprefix("#/").partition("/")
            name = name.partition("/")[0].replace("~1", "/").replace("~0", "~")
            definitions = root.get(place) if place in found else None
            if isinstance(definitions, dict) and name in definitions and name not in found[place]:
                found[place][name] = definitions[name]
                left.append(definitions[name])
    return {name: definitions for name, definitions in found.items() if definitions} | schema


def followed(schema: Json, is_strict: bool) -> str:
    options = _SPACES | {"whitespace_flexible": False, "lenient": not is_strict}
    return json.dumps({**schema, "x-guidance": options})


def spelled(text: str, syntax: CallSyntax) -> str:
    """A text as a grammar's terms: special tokens by their ids, for they are no text."""
    ids = {token: token_id for token, token_id in syntax.special_tokens if token in text}
    longest = sorted(ids, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest))})", text) if longest else [text]
    return " ".join(f"<[{ids[part]}]>" if part in ids else json.dumps(part) for part in parts if part)
