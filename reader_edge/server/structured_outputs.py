"""What form a request wants its answer in: OpenAI's `response_format`, and vLLM's words for what that cannot say."""

import json
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge.server.fields import Fields
from reader_edge_runtime import Grammar

_FORMATS = ("text", "json_object", "json_schema")
_KINDS = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "lark"}
_OLD_NAMES = {f"guided_{name}": name for name in _KINDS}
_MAX_DEPTH = 120  # of a schema: llguidance reads JSON of 127, in which it lies within other objects


class AnswerForm(NamedTuple):
    """grammar: None for any text. param: the field that asks for it. told: OpenAI's words for it."""

    grammar: Grammar | None = None
    param: str = ""
    told: Mapping[str, object] = MappingProxyType({"type": "text"})


def read_form(fields: Fields) -> AnswerForm:
    """Of a chat or a completion. Raises ApiError and ConfigError."""
    name = "response_format"
    form = fields.get(name, dict, {"type": "text"}, "an object with a 'type'")
    return _only([_form(form, form.get("json_schema"), name), *_read_structured_outputs(fields)])


def read_response_form(fields: Fields) -> AnswerForm:
    """Of a response, which describes a schema beside the type. Raises ApiError and ConfigError."""
    text = Fields(fields.get("text", dict, {}, "an object with a 'format'"))
    form = text.get("format", dict, {"type": "text"}, "an object with a 'type'")
    text.refuse_rest()
    return _only([_form(form, form, "text.format"), *_read_structured_outputs(fields)])


def _only(forms: list[AnswerForm]) -> AnswerForm:
    asked = [form for form in forms if form.grammar is not None]
    if len(asked) > 1:
        first, second = asked[0].param, asked[1].param
        if first == second:
            sentence = f"'{first}' says more than once what the answer is: give it one of {', '.join(_KINDS)}."
        else:
            sentence = f"'{first}' and '{second}' cannot both say what the answer is: leave one out."
        raise ApiError(400, sentence, second)
    return asked[0] if asked else AnswerForm()


def _form(form: dict[str, object], described: object, name: str) -> AnswerForm:
    """described: what holds the schema, where it is one. name: of the field."""
    kind = form.get("type")
    if kind == "text":
        return AnswerForm()
    if kind == "json_object":
        return AnswerForm(Grammar("json_schema", '{"type": "object"}'), name, form)
    if kind != "json_schema":
        raise wrong_value(f"{name}.type", kind, f"one of {', '.join(_FORMATS)}", name)
    if not isinstance(described, dict) or not isinstance(described.get("schema"), dict | None):
        place = name if described is form else f"{name}.json_schema"
        raise wrong_value(place, described, "an object with an object 'schema'", name)
    schema = described.get("schema") or {"type": "object"}
    check_depth(schema, f"The schema of '{name}'", name)
    return AnswerForm(Grammar("json_schema", schema_text(schema, described.get("strict") is True)), name, form)


def schema_text(schema: dict[str, object], is_strict: bool) -> str:
    """A schema as a grammar's text. is_strict: what cannot be followed is refused, otherwise it is ignored."""
    return json.dumps(schema if is_strict else schema | {"x-guidance": {"lenient": True}})


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


def _read_structured_outputs(fields: Fields) -> list[AnswerForm]:
    """Of `structured_outputs`, and of the names that its parts had before."""
    name = "structured_outputs"
    given = fields.get(name, dict, {}, f"an object with one of {', '.join(_KINDS)}")
    unknown = sorted(set(given) - set(_KINDS))
    if unknown:
        raise ApiError(400, f"There is no '{name}.{unknown[0]:.60}': give one of {', '.join(_KINDS)}.", name)
    forms = [AnswerForm(_grammar(part, value, name), name) for part, value in given.items() if value is not None]
    for old, part in _OLD_NAMES.items():
        value = fields.take(old)
        if value is not None:
            forms.append(AnswerForm(_grammar(part, value, old), old))
    return forms


def _grammar(part: str, value: object, param: str) -> Grammar:
    is_text = isinstance(value, str) and part != "choice"
    is_right = {"json": isinstance(value, dict), "choice": isinstance(value, list)}.get(part, False)
    if not is_text and not is_right:
        wanted = {"json": "an object or its text", "choice": "a list of texts"}.get(part, "a text")
        raise ApiError(400, f"'{param}' must hold {wanted} as '{part}'.", param)
    if part == "json":
        check_depth(_schema(value), f"The schema of '{param}'", param)
    return Grammar(_KINDS[part], value if isinstance(value, str) else json.dumps(value))
