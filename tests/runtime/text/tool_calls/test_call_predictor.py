"""What tools allow next: each step of a call that follows its schema is predicted; strange declarations do no harm."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.text.tool_calls.call_predictor import MAX_CALLS, CallReader
from reader_edge_runtime.text.tool_calls.call_schema import CallSchema, Values
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.json_cursor import MAX_DEPTH, CursorPlace, JsonCursor

TAGGED, BARE = CallSyntax(), CallSyntax("", "", "parameters")
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


def drawn(schema: dict[str, Any], data: st.DataObject) -> object:
    """A value that keeps to a schema, its keys in order."""
    if "enum" in schema:
        return data.draw(st.sampled_from(schema["enum"]))
    if schema["type"] == "object":
        return {key: drawn(each, data) for key, each in schema["properties"].items()}
    if schema["type"] == "array":
        return [drawn(schema["items"], data) for _ in range(data.draw(st.integers(0, 2)))]
    return data.draw(st.booleans()) if schema["type"] == "boolean" else None


def reader_of(tools: list[Any], syntax: CallSyntax = TAGGED) -> CallReader:
    return CallReader(CallSchema(tools, syntax), syntax)


@settings(max_examples=40)
@given(st.dictionaries(NAMES, PARAMETERS, min_size=1, max_size=3), st.sampled_from([TAGGED, BARE]), st.data())
def test_every_step_of_a_call_is_predicted(
    declared: dict[str, dict[str, Any]], syntax: CallSyntax, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(declared)))
    call = {"name": name, syntax.arguments: drawn(declared[name], data)}
    rest = syntax.begin + json.dumps(call, ensure_ascii=False) + syntax.end
    reader = reader_of([tool(*each) for each in declared.items()], syntax)
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
    for syntax in (TAGGED, BARE):
        reader = reader_of([*declared, tool("a", declared), tool("b", {"properties": {"a": declared[-1:]}})], syntax)
        for text in (syntax.begin, '{"name": "b", "' + syntax.arguments + '": {"a": ', answer):
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


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
SCALARS = st.none() | st.booleans() | st.integers(-999, 999) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)


def scalars_of(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """Raw scalars by path, of items the last."""
    if isinstance(value, dict):
        parts = [scalars_of(each, (*path, json.dumps(key)[1:-1])) for key, each in value.items()]
    elif isinstance(value, list):
        parts = [scalars_of(each, (*path, "")) for each in value]
    else:
        return {path: json.dumps(value)}
    return {key: text for part in parts for key, text in part.items()}


@settings(max_examples=40)
@given(OBJECTS, st.sampled_from([None, 2]), st.sampled_from([(", ", ": "), (",", ":"), (" , ", " :  ")]), st.data())
def test_a_cursor_reads_what_a_reader_of_the_whole_reads(
    value: dict[str, Any], indent: int | None, separators: tuple[str, str], data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, separators=separators)
    cursor = JsonCursor()
    at = data.draw(st.integers(0, len(text)))
    assert cursor.feed(text[:at]) == ""
    other = cursor.copy()
    assert (cursor.place is CursorPlace.DONE) == (at == len(text))
    for each in (cursor, other):
        assert each.feed(text[at:] + " rest") == " rest"
        assert each.place is CursorPlace.DONE
        assert each.scalars == scalars_of(value)


def test_a_cursor_knows_where_it_is() -> None:
    cursor = JsonCursor()
    for text, place, path in [
        ("{", CursorPlace.KEY, ("",)),
        ('"a', CursorPlace.IN_KEY, ("",)),
        ('"', CursorPlace.COLON, ("a",)),
        (":", CursorPlace.VALUE, ("a",)),
        ("  [", CursorPlace.VALUE, ("a", "")),
        ("12", CursorPlace.SCALAR, ("a", "")),
        (",", CursorPlace.VALUE, ("a", "")),
        ('"x', CursorPlace.STRING, ("a", "")),
        ('\\"y"', CursorPlace.AFTER, ("a", "")),
        ("]", CursorPlace.AFTER, ("a",)),
    ]:
        assert cursor.feed(text) == ""
        assert (cursor.place, cursor.path) == (place, path)
    assert cursor.gaps == {":": "  ", ",": ""}


def test_what_is_no_json_or_too_deep_is_lost() -> None:
    for text in ("}", '{"a" 1', "{1", '{"a": ]', "x", "[" * (MAX_DEPTH + 1)):
        cursor = JsonCursor()
        cursor.feed(text)
        assert cursor.place is CursorPlace.LOST
        assert cursor.feed("more") == "more"
