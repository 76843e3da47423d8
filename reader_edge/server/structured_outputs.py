"""Structured outputs: OpenAI's `response_format`, and vLLM's fields for what that cannot say."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge.server.schema import JsonObject
from reader_edge_runtime import Grammar

_KINDS = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "lark"}
_MAX_DEPTH = 120  # of a schema: llguidance reads JSON of 127, in which it lies within other objects
_ANY_OBJECT = {"type": "object"}

Schema = Annotated[dict[str, Any], Meta(description="a JSON schema, an object")]


class AnyText(JsonObject, tag_field="type", tag="text", refused="json_schema schema"):
    """Any text."""


class AnyJson(JsonObject, tag_field="type", tag="json_object"):
    """JSON: any object, or as llama.cpp and others have it, one of this schema."""

    schema: Schema | None = None


class DescribedSchema(JsonObject):
    """strict: a schema that cannot be followed in all its parts is refused. name, description: for other systems."""

    schema: Schema
    strict: bool = False
    name: str | None = None
    description: str | None = None


class JsonOfSchema(JsonObject, tag_field="type", tag="json_schema"):
    """JSON of a schema, as chats describe it. schema: in place of `json_schema`, as some servers have it."""

    json_schema: DescribedSchema | None = None
    schema: Schema | None = None


class FlatJsonOfSchema(DescribedSchema, tag_field="type", tag="json_schema"):
    """JSON of a schema, as responses describe it: beside its type."""


ResponseFormat = AnyText | AnyJson | JsonOfSchema
TextFormat = AnyText | AnyJson | FlatJsonOfSchema

JsonSchema = Annotated[dict[str, Any] | str, Meta(description="a JSON schema, as an object or as a text")]
Choices = Annotated[
    list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, description="a JSON list of texts that are not empty")
]


_IGNORED = "disable_additional_properties disable_any_whitespace disable_fallback"


class StructuredOutputs(JsonObject, ignored=_IGNORED, refused="structural_tag whitespace_pattern"):
    """vLLM's: one of these. regex: in Rust's syntax. grammar: in llguidance's dialect of Lark."""

    json: JsonSchema | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool = False


class RequestedFormat(NamedTuple):
    """grammar: None for any text. param: the field that asks for it. echoed: OpenAI's words for it."""

    grammar: Grammar | None = None
    param: str = ""
    echoed: Mapping[str, object] = MappingProxyType({"type": "text"})


def only_format(formats: Sequence[RequestedFormat]) -> RequestedFormat:
    """The one that asks for more than text. Raises ApiError where several do."""
    requested = [each for each in formats if each.grammar is not None]
    if len(requested) > 1:
        first, second = requested[0].param, requested[1].param
        if first == second:
            sentence = f"'{first}' says more than once what the answer is: give it one of {', '.join(_KINDS)}."
        else:
            sentence = f"'{first}' and '{second}' cannot both say what the answer is: leave one out."
        raise ApiError(400, sentence, second)
    return requested[0] if requested else RequestedFormat()


def requested_format(requested: ResponseFormat | FlatJsonOfSchema, name: str) -> RequestedFormat:
    """name: of the field. Raises ApiError and ConfigError."""
    echoed = {key: value for key, value in msgspec.to_builtins(requested).items() if value is not None}
    match requested:
        case AnyText():
            return RequestedFormat()
        case AnyJson():
            return schema_format(requested.schema or _ANY_OBJECT, requested.schema is None, name, echoed)
        case DescribedSchema():
            return schema_format(requested.schema, requested.strict, name, echoed)
    if requested.json_schema is not None and requested.schema is not None:
        sentence = f"'{name}.json_schema' and '{name}.schema' cannot both say what the answer is: leave one out."
        raise ApiError(400, sentence, f"{name}.schema")
    if requested.json_schema is None and requested.schema is None:
        place = f"{name}.json_schema"
        raise wrong_value(place, echoed.get("json_schema"), "an object with an object 'schema'", place)
    described = requested.json_schema or DescribedSchema(schema=requested.schema or {})
    return schema_format(described.schema, described.strict, name, echoed)


def schema_format(
    schema: Mapping[str, Any], is_strict: bool, name: str, echoed: Mapping[str, object] = MappingProxyType({})
) -> RequestedFormat:
    """is_strict: what cannot be followed is refused, otherwise it is left out. Raises ApiError and ConfigError."""
    check_depth(schema, f"The schema of '{name}'", name)
    text = json.dumps({**schema, "x-guidance": {"lenient": not is_strict}})  # in place of options of the client's
    return RequestedFormat(Grammar("json_schema", text), name, echoed)


def formats_of_outputs(requested: StructuredOutputs, param: str) -> list[RequestedFormat]:
    """Raises ApiError and ConfigError."""
    given = {part: getattr(requested, part) for part in _KINDS}
    formats = [
        RequestedFormat(grammar_of(part, value, param), param) for part, value in given.items() if value is not None
    ]
    if requested.json_object:
        formats.append(schema_format(_ANY_OBJECT, True, param))
    if not formats:  # which answers would silently not follow
        raise ApiError(
            400, f"'{param}' holds answers to nothing: give it one of {', '.join(_KINDS)}, json_object.", param
        )
    return formats


def grammar_of(part: str, value: object, param: str) -> Grammar:
    """part: which of vLLM's fields the value is of. Raises ApiError and ConfigError."""
    if part == "json":
        check_depth(_schema(value), f"The schema of '{param}'", param)
    return Grammar(_KINDS[part], value if isinstance(value, str) else json.dumps(value))


def check_depth(schema: object, name: str, param: str) -> None:
    """Raise ApiError for a schema that is nested deeper than can be followed. name: what the refusal calls it."""
    depth, level = 0, [schema]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [part for each in level for part in (each.values() if isinstance(each, dict) else each)]
    if depth > _MAX_DEPTH:
        raise ApiError(400, f"{name} is nested {depth} deep, but may be {_MAX_DEPTH} at most: make it flatter.", param)


def _schema(value: object) -> object:
    """Of a schema or its text; the text where that cannot be read: it is refused with the grammar's words."""
    with suppress(ValueError, RecursionError):
        return json.loads(value) if isinstance(value, str) else value
    return value
