"""What tools allow next: each step of a call that follows its schema is predicted; strange declarations do no harm."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.text.tool_calls.call_form import CallForm
from reader_edge_runtime.text.tool_calls.call_guide import MAX_CALLS, CallReader
from reader_edge_runtime.text.tool_calls.call_schema import CallSchema, Values

TAGGED, BARE = CallForm(), CallForm("", "", "parameters")
NAMES = st.text("abcdefgh_", min_size=1, max_size=8)
CHOICES = st.lists(st.text("xyz é\n", max_size=5) | st.integers(-9, 9) | st.none(), min_size=1, max_size=4)
CHOSEN = st.fixed_dictionaries({"enum": CHOICES}) | st.just({"type": "boolean"}) | st.just({"type": ["null"]})
SCHEMAS = st.recursive(
    CHOSEN,
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)})
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner})
    ),
    max_leaves=5,
)
PARAMETERS = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(NAMES, SCHEMAS, max_size=4)}
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["function", "name", "parameters", "type", "properties", "enum", "items", "$ref", "anyOf", "a"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def tool(name: object, parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def said(schema: dict[str, Any], data: st.DataObject) -> object:
    """A value that keeps to a schema, its keys in order."""
    if "enum" in schema:
        return data.draw(st.sampled_from(schema["enum"]))
    if schema["type"] == "object":
        return {key: said(each, data) for key, each in schema["properties"].items()}
    if schema["type"] == "array":
        return [said(schema["items"], data) for _ in range(data.draw(st.integers(0, 2)))]
    return data.draw(st.booleans()) if schema["type"] == "boolean" else None


def reader_of(tools: list[Any], form: CallForm = TAGGED) -> CallReader:
    return CallReader(CallSchema(tools, form), form)


@settings(max_examples=40)
@given(st.dictionaries(NAMES, PARAMETERS, min_size=1, max_size=3), st.sampled_from([TAGGED, BARE]), st.data())
def test_every_step_of_a_call_that_keeps_to_its_schema_is_foretold(
    declared: dict[str, dict[str, Any]], form: CallForm, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(declared)))
    call = {"name": name, form.arguments: said(declared[name], data)}
    rest = form.begin + json.dumps(call, ensure_ascii=False) + form.end
    reader = reader_of([tool(*each) for each in declared.items()], form)
    while rest:
        ahead = [text for text, p in reader.continuations({}) if 0 < p <= 1]
        shared = max(
            next((n for n, (a, b) in enumerate(zip(text, rest, strict=False)) if a != b), len(text)) for text in ahead
        )
        assert shared > 0
        reader.read(rest[:shared])
        rest = rest[shared:]
    assert [each for each, _ in reader.calls] == [name]


def test_the_states_of_a_call_are_start_first_parameter_and_further_ones() -> None:
    weather = {"properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}}, "required": ["city"]}
    reader = reader_of([tool("weather", weather), tool("wait", {})])

    def ahead() -> list[str]:
        return [text for text, _ in reader.continuations({})]

    assert ahead() == ['<tool_call>\n{"name": "']
    reader.read('<tool_call>\n{"name": "')
    assert ahead() == ['weather", "arguments": {"city": "', 'wait", "arguments": {}}\n</tool_call>']
    reader.read('weather", "arguments": {')
    assert ahead() == ['"city": "', '"unit": "']
    reader.read('"city": "Rome')
    assert ahead() == ['", "unit": "']
    reader.read('"')
    assert ahead() == [', "unit": "', "}}\n</tool_call>"]
    reader.read(', "unit": "f')
    assert ahead() == ['"}}\n</tool_call>']
    reader.read('"}}\n</tool_call>')
    assert ahead() == ['\n<tool_call>\n{"name": "']
    assert reader.calls == [("weather", {"city": '"Rome"', "unit": '"f"'})]
    reader.read(" That is all, <tool")
    assert ahead() == ['_call>\n{"name": "']
    reader.read("box>.")
    assert ahead() == []


def test_past_values_of_the_same_argument_come_first() -> None:
    reader = reader_of([tool("a", {"properties": {"x": {"type": "string"}, "y": {"type": "integer"}}}), tool("b", {})])
    past: dict[str, Values] = {"a": {"x": ['"Rome"', '"Riga"'], "y": ["12"]}}
    reader.read('<tool_call>\n{"name":"a","arguments":{"x":"R')
    assert [text for text, _ in reader.continuations(past)] == ['ome","y":', 'iga","y":']
    assert [text for text, _ in reader.continuations({})] == ['","y":']


def test_a_call_without_tags_is_the_whole_answer() -> None:
    reader = reader_of([tool("a", {})], BARE)
    reader.read(" So {")
    assert reader.continuations({}) == []
    reader = reader_of([tool("a", {})], BARE)
    reader.read(' {"name"')
    assert [text for text, _ in reader.continuations({})] == [': "a", "parameters": {}}']


@pytest.mark.long
@settings(max_examples=40)
@given(st.lists(ANYTHING, max_size=4), st.text('<>tol_ca{}[]":,ab\n', max_size=30))
def test_strange_declarations_and_answers_do_no_harm(declared: list[Any], answer: str) -> None:
    for form in (TAGGED, BARE):
        reader = reader_of([*declared, tool("a", declared), tool("b", {"properties": {"a": declared[-1:]}})], form)
        for text in (form.begin, '{"name": "b", "' + form.arguments + '": {"a": ', answer):
            reader.read(text)
            assert len(reader.continuations({"b": {"a": ["1"]}})) <= 8


def test_large_declarations_are_bounded() -> None:
    endless: dict[str, Any] = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"type": "object", "properties": {"a": deep}}
    many = [*range(1000), "x" * 300]
    wide = {"properties": {f"key{i}": {"enum": many} for i in range(5000)}}
    tools = [tool("endless", endless), tool("deep", deep), tool("wide", wide), tool("x" * 1000, {})]
    tools += [tool(f"tool{i}", wide) for i in range(5000)]
    assert len(CallSchema(tools, TAGGED).names) <= 128
    for name in ("endless", "deep", "wide", "tool1", "tool4999"):
        reader = reader_of(tools)
        reader.read('<tool_call>\n{"name": "' + name + '", "arguments": ')
        for _ in range(20):
            ahead = reader.continuations({})
            assert len(ahead) <= 8
            assert sum(len(text) for text, _ in ahead) < 8000
            reader.read(ahead[0][0] if ahead else '"')
    reader = reader_of([tool("a", {})])
    for _ in range(MAX_CALLS + 5):
        reader.read('<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>')
    assert len(reader.calls) == MAX_CALLS
