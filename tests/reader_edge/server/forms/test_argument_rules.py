"""Arguments that are written one after another, texts without quotes: held, refused where strict, or reported."""

from typing import Any

import pytest

from reader_edge.server.api_error import ApiError
from reader_edge.server.tool_grammar import held_arguments, tool_grammar
from reader_edge_runtime import Grammar
from reader_edge_runtime.text.tool_calls.call_parser import called_tools
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from tests.reader_edge.server.forms.call_families import form_of

TEXT = {"type": "string"}
BOTH = {"a": TEXT, "b": TEXT}
FAMILIES = ("qwen3-coder", "glm")


def function(parameters: dict[str, Any], is_strict: bool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": is_strict}}


def grammar(parameters: dict[str, Any], is_strict: bool, name: str) -> Grammar:
    use = ToolUse((function(parameters, is_strict),), ("f",), is_required=True, is_strict=is_strict)
    found = tool_grammar(use, form_of(name), None)
    assert found is not None
    return found


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "parameters",
    [
        {"required": ["a"]},
        {"properties": {"b": TEXT}, "required": ["a"]},
        {"required": ["a"], "additionalProperties": TEXT},
        {"properties": BOTH, "minProperties": 1},
        {"properties": BOTH, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"anyOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": TEXT}, "required": ["b"]}]},
        {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"a": {"minLength": 1}}}]},
        {"allOf": [{"properties": {"a": TEXT}, "additionalProperties": False}, {"properties": {"b": TEXT}}]},
        {"properties": BOTH, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        {"properties": BOTH, "dependentRequired": {"a": ["b"]}},
        {"properties": BOTH, "not": {"required": ["a"]}},
        {"properties": BOTH, "propertyNames": {"maxLength": 1}},
        {"properties": BOTH, "patternProperties": {"^a": {"minLength": 2}}},
        {"properties": {"a": False}, "required": ["a"]},
        {"properties": {"a>b": TEXT}, "required": ["a>b"]},
        {"properties": {"a": {"type": ["string", "integer"], "maximum": 3}}},
        {"properties": {"a": {"type": "string", "not": {"const": "x"}}}},
        {"properties": {"a": {"enum": ["x", "y"], "not": {"const": "x"}}}},
        {"properties": {"a": {"anyOf": [TEXT, {"type": "integer", "multipleOf": 5}]}}},
        {"properties": {"a": {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}}},
        {"properties": {"a": {"allOf": [TEXT, {"maxLength": 3}]}}},
        {"properties": {"a": {"oneOf": [TEXT, {"const": "x"}]}}},
        {"properties": {"a": {"pattern": "^x"}}},
    ],
)
def test_what_is_not_held_of_such_arguments_is_refused_or_reported(parameters: dict[str, Any], name: str) -> None:
    parameters = {"type": "object"} | parameters
    with pytest.raises(ApiError, match=r"^This model writes .* cannot be held: leave it out\.$"):
        grammar(parameters, True, name)
    assert grammar(parameters, False, name).left_out


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_held_of_such_arguments_is_not_reported(name: str) -> None:
    for parameters in (
        {"allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": TEXT}, "required": ["b"]}]},
        {"properties": BOTH | {"c": False, "d": {"enum": ["x", 1]}, "e": {"maximum": 3}}, "additionalProperties": TEXT},
        {"properties": {"a": {"oneOf": [TEXT, {"type": "null"}]}, "b": {"oneOf": [{"const": "x"}, {"const": "y"}]}}},
    ):
        assert grammar({"type": "object"} | parameters, True, name).left_out == ()
    narrowed = {"type": "object", "properties": {"a": {"enum": ["x", "y"], "anyOf": [{"const": "x"}]}}}
    assert '("x")' in grammar(narrowed, True, name).text
    both = grammar({"allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": TEXT}}]}, True, name)
    assert "arguments0: arguments0p0 arguments0p1?" in both.text
    assert "arguments0p0" not in grammar({"type": "object", "properties": {"a": False}}, True, name).text


@pytest.mark.parametrize("name", FAMILIES)
def test_a_listed_text_is_written_only_where_the_type_takes_texts(name: str) -> None:
    numbers = {"type": "object", "properties": {"a": {"type": ["integer", "null"], "enum": ["x", 1]}}}
    assert '"x" |' not in grammar(numbers, True, name).text
    mixed = {"type": "object", "properties": {"a": {"type": ["integer", "string"], "enum": ["x", 1, 2.5]}}}
    assert '("x" | arguments0p0vo)' in grammar(mixed, True, name).text
    assert '"allOf": [{"type": ["integer", "string"], "enum": ["x", 1, 2.5]}' in grammar(mixed, True, name).text


@pytest.mark.parametrize("name", FAMILIES)
def test_a_schema_whose_words_are_too_long_for_a_grammar_is_held_where_its_rules_are_not(name: str) -> None:
    parameters = {"type": "object", "properties": {"a": TEXT | {"description": "x" * 70_000}}}
    use = ToolUse((function(parameters, True),), ("f",), is_required=True, is_strict=True)
    assert len(grammar(parameters, True, name).text) < 1000
    assert held_arguments(use, form_of(name)) == {}


X = {"X": {"minLength": 1}}
NAMED = {"$anchor": "x", "type": "string"}
REFERRED = {"properties": {"a": {"$ref": "http://e.x/s#/$defs/X"}}, "$defs": {"X": TEXT}}


@pytest.mark.parametrize("value", ["12345", "true", '{"x":1}'])
@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": {"type": "string", "anyOf": [{"pattern": "^\\d+$"}, {"minLength": 10}]}}},
        {"properties": {"a": {"type": "string", "oneOf": [{"format": "date"}, {"minLength": 1}]}}},
        {"properties": {"a": {"type": "string", "allOf": [{"minLength": 1}]}}},
        {"properties": {"a": {"allOf": [TEXT, {"minLength": 1}]}}},
        {"properties": {"a": {"type": ["string", "null"], "anyOf": [{"type": "string"}, {"type": "integer"}]}}},
        {"properties": {"a": {"type": "string", "$ref": "#/$defs/X"}}, "$defs": X},
        {"properties": {"a": {"$ref": "#x"}}, "$defs": {"X": NAMED}},
        {"$id": "http://e.x/s"} | REFERRED,
        {"properties": {"a": {"$ref": "http://e.x/t"}}, "$defs": {"X": {"$id": "http://e.x/t"} | TEXT}},
        {"properties": {"a": {"$ref": "#/$defs/X%20Y"}}, "$defs": {"X Y": TEXT}},
        {"properties": {"a": {"$ref": "#/$defs/X/anyOf/0"}}, "$defs": {"X": {"anyOf": [TEXT]}}},
        {"properties": {"a": {"pattern": "^\\d+$"}}},
        {"properties": {"a": {"format": "date"}}},
        {"additionalProperties": TEXT},
        {"patternProperties": {"^a": TEXT}},
        {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]},
        {"anyOf": [{"properties": {"b": TEXT}}, {"properties": {"a": TEXT}}]},
        {"properties": {"a": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"properties": {"a": TEXT}, "allOf": [{"required": ["a"]}]},
        {"properties": BOTH, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    ],
)
def test_an_argument_whose_schema_says_text_stays_one(parameters: dict[str, Any], value: str) -> None:
    tools = [function({"type": "object"} | parameters, False)]
    xml = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
    keys = f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{value}</arg_value></tool_call>"
    for name, text in zip(FAMILIES, (xml, keys), strict=True):
        _, (call,) = called_tools(text, tools, form_of(name))
        assert call.arguments == {"a": value}


def test_an_argument_that_may_be_a_number_is_one() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>"
    for schema in ({"type": "integer"}, {"format": "int64"}, {"allOf": [{"type": ["integer", "string"]}, {}]}, {}):
        tools = [function({"type": "object", "properties": {"a": schema}}, False)]
        _, (call,) = called_tools(text, tools, form_of(FAMILIES[0]))
        assert call.arguments == {"a": 5}
