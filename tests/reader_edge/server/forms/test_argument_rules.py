"""Rules for the arguments of calls, in their schema and in the grammar."""

import json
import random
import re
from typing import Any

import pytest

from reader_edge.server.api_error import ApiError
from reader_edge.server.tool_grammar import enforced_arguments, tool_grammar
from reader_edge_runtime import Grammar
from reader_edge_runtime.text.tool_calls.call_parser import called_tools
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from tests.reader_edge.server.forms.call_families import form_of

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
pytest.importorskip("jsonschema", reason="it is not installed: pip install 'reader-edge[grammar]'")

from reader_edge_runtime.decoding.sampling.grammar_worker import ADVANCE
from reader_edge_runtime.decoding.sampling.grammar_worker.answer_check import number, problem_of
from reader_edge_runtime.decoding.sampling.grammar_worker.matcher import GrammarMatcher
from reader_edge_runtime.text.tool_calls.streaming_calls import call_prefix, call_suffix
from tests.reader_edge.server.forms.call_families import read_calls
from tests.runtime.decoding.sampling.followed import allowed, follow, random_answer, takes, wild_schema

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
    assert enforced_arguments(use, form_of(name)) == {}


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


JSON = ("hermes", "mistral with names", "gpt-oss", "deepseek v3", "llama 3", "apertus", "phi 4 mini", "functionary")
ONE_BY_ONE = ("qwen3-coder", "glm", "seed-oss")
# Longer than the bytes that are the vocabulary else, as those of models: keys and exponents may end inside.
TOKENS = (b'"a"', b'"a', b'{"a":', b', "a": ', b'": {"a', b'a": ', b"1e1", b"e1", b"11", b'\\"', b'a\\"', b'""', b"}}")
ENDS = b'"ae1}]:,'
Schema = dict[str, Any]


def use_of(parameters: Schema, is_strict: bool, is_required: bool = True) -> ToolUse:
    function = {"name": "f", "parameters": parameters, "strict": is_strict}
    return ToolUse(({"type": "function", "function": function},), ("f",), is_required, False, is_strict)


def held(use: ToolUse, name: str, more: tuple[bytes, ...] = ()) -> tuple[GrammarMatcher, tuple[str, ...]]:
    """The grammar of calls as a family writes them, and what it does not hold. Raises ApiError or ValueError."""
    grammar = tool_grammar(use, form_of(name), None)
    assert grammar is not None
    followed = follow(grammar.text, grammar.kind, more)
    return followed, (*grammar.left_out, *followed.left_out)


def once(pairs: list[tuple[str, Any]]) -> Schema:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def short(text: str) -> float:
    assert not re.search("[eE][+-]?[0-9]{3}", text), text
    return float(text)


def checked(text: str) -> Any:
    """A JSON text in which no key comes twice and no exponent is long."""
    return json.loads(text, object_pairs_hook=once, parse_float=short)


def output(text: str, use: ToolUse, name: str) -> str:
    """The arguments of the one call of an answer."""
    _, ((called, arguments),) = read_calls(text, 10_000, use, form_of(name))
    assert called == "f"
    return arguments


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("name", JSON)
def test_arguments_in_json_satisfy_any_schema_and_no_key_of_them_comes_twice(name: str, is_strict: bool) -> None:
    num_held = num_valid = 0
    place = JSON.index(name) * 20
    for seed in range(place, place + 20):
        parameters = wild_schema(seed) | {"type": "object"}
        rng = random.Random(seed)
        try:
            followed, left_out = held(use_of(parameters, is_strict), name, TOKENS)
        except ValueError as refusal:
            reason = str(refusal)
        else:
            reason = ""
        assert is_strict or not reason or "allows nothing" in reason, (parameters, reason)
        if reason:
            continue
        num_held += 1
        answer = random_answer(followed, rng, ENDS, 400, 0.8)
        if answer is None:
            continue
        arguments = output(answer, use_of(parameters, is_strict), name)
        checked(arguments)
        if not left_out:
            exact = json.loads(json.dumps(parameters), parse_float=number)
            assert problem_of(exact, arguments) == "", (parameters, arguments)
            num_valid += 1
    assert num_held > 5
    assert num_valid > 2


OPEN: Schema = {"type": "object", "properties": {"e": {"type": "integer"}}, "additionalProperties": {"type": "number"}}
FREE = (
    OPEN,
    {"type": "object"},
    {"type": "array", "items": {"type": "object"}},
    {"type": "number"},
    {"type": "object", "patternProperties": {"^a": {"type": "number"}}, "additionalProperties": True},
    {"type": ["array", "object", "number"]},
)


@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.parametrize("name", [*JSON, *ONE_BY_ONE])
def test_keys_and_exponents_of_free_arguments_are_held_in_every_notation(name: str, is_required: bool) -> None:
    parameters = {"type": "object", "properties": dict(zip("pqrstu", FREE, strict=True)), "required": ["r", "s"]}
    use, form = use_of(parameters, True, is_required), form_of(name)
    rng = random.Random(f"{name}{is_required}")
    begun = "" if is_required else form.tag or "{"
    num_keys = num_whole = 0
    for _ in range(6):
        followed, _ = held(use, name, TOKENS)
        text = f'"{{"a":1e999,"a":1e999 {begun}' if begun == form.tag != "" else begun  # in which anything may stand
        for byte in text.encode():
            assert byte in allowed(followed)
            followed.reply(ADVANCE, [byte])
        answer = random_answer(followed, rng, ENDS, 1500, 0.85)
        if answer is None:
            continue
        if name in ONE_BY_ONE:
            before, between, behind = (re.escape(part) for part in form.parameter)
            values = re.findall(f"{before}[p-u]{between}(.*?){behind}", answer, re.DOTALL)
            assert values
        else:
            values = [output(begun + answer, use, name)]
        for value in values:
            num_keys += len(re.findall('"a', value)) > 1
            checked(value)
        num_whole += 1
    assert num_whole > 1
    assert num_keys


def test_what_is_written_as_it_is_may_look_like_an_exponent_or_an_object() -> None:
    words = ["1e99", "1e999", '{"a":1,"a":2}', 'say "x', "1e9999"]
    parameters = {"type": "object", "properties": {"a": {"enum": words}, "b": OPEN, "c": {"type": "string"}}}
    for name in ONE_BY_ONE:
        form = form_of(name)
        before, between, behind = form.parameter
        for word in words:
            for value in ('{"e": 1, "a": 1e99}', '{"a": 1, "a": 2}', '{"a": 1e100}'):
                arguments = {"a": word, "b": value, "c": '{"a":1e999,"a":1'}
                inner = "".join(before + key + between + each + behind for key, each in arguments.items())
                use = use_of(parameters, True)
                text = form.begin + "f" + form.between + inner + form.end
                followed, _ = held(use, name)
                assert takes(followed, text) == value.startswith('{"e"'), (name, text)


@pytest.mark.parametrize("name", [*JSON, *ONE_BY_ONE])
def test_a_tool_may_be_called_whatever_its_name(name: str) -> None:
    names, form = ("get1e12", "get1e1234", "get1e99.1e999"), form_of(name)
    functions = tuple({"type": "function", "function": {"name": each}} for each in names)
    for each in names:
        grammar = tool_grammar(ToolUse(functions, names, is_required=True, is_parallel=False), form, None)
        assert grammar is not None
        arguments = "" if name in ONE_BY_ONE else "{}"
        text = form.opening + call_prefix(form, each) + arguments + call_suffix(form) + form.closing
        assert takes(follow(grammar.text, grammar.kind), text)
