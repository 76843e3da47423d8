"""What form a request wants its answer in: OpenAI's `response_format`, and vLLM's words for what that cannot say."""

import json
from typing import NamedTuple

from reader_edge.server.api_error import ApiError
from reader_edge.server.fields import Fields
from reader_edge_runtime import Grammar

_FORMATS = ("text", "json_object", "json_schema")
_KINDS = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "lark"}
_OLD_NAMES = {f"guided_{name}": name for name in _KINDS}


class AnswerForm(NamedTuple):
    """grammar: None for any text. param: the field that asks for it."""

    grammar: Grammar | None = None
    param: str = ""


def read_form(fields: Fields) -> AnswerForm:
    """Raises ApiError and ConfigError."""
    forms = [_read_response_format(fields), *_read_structured_outputs(fields)]
    asked = [form for form in forms if form.grammar is not None]
    if len(asked) > 1:
        sentence = f"'{asked[0].param}' and '{asked[1].param}' cannot both say what the answer is: leave one out."
        raise ApiError(400, sentence, asked[1].param)
    return asked[0] if asked else AnswerForm()


def _read_response_format(fields: Fields) -> AnswerForm:
    name = "response_format"
    form = fields.get(name, dict, {"type": "text"}, "an object with a 'type'")
    kind = form.get("type")
    if kind == "text":
        return AnswerForm()
    if kind == "json_object":
        return AnswerForm(Grammar("json_schema", '{"type": "object"}'), name)
    if kind != "json_schema":
        raise ApiError(400, f"'{name}.type' must be one of {', '.join(_FORMATS)}.", name)
    described = form.get("json_schema")
    if not isinstance(described, dict) or not isinstance(described.get("schema"), dict | None):
        raise ApiError(400, f"'{name}.json_schema' must be an object with an object 'schema'.", name)
    schema = described.get("schema") or {"type": "object"}
    return AnswerForm(Grammar("json_schema", schema_text(schema, described.get("strict") is True)), name)


def schema_text(schema: dict[str, object], is_strict: bool) -> str:
    """A schema as a grammar's text. is_strict: what cannot be followed is refused, otherwise it is ignored."""
    return json.dumps(schema if is_strict else schema | {"x-guidance": {"lenient": True}})


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
    return Grammar(_KINDS[part], value if isinstance(value, str) else json.dumps(value))
