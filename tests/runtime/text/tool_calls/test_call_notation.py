"""Calls as models write them: each notation read as it is meant, and what is no call of a known tool as none."""

import json
from typing import Any

import pytest

from reader_edge_runtime.text.tool_calls.call_form import CallForm, Notation
from reader_edge_runtime.text.tool_calls.call_notation import is_open, read_calls
from reader_edge_runtime.untrusted.untrusted_json import load_finite

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
SCHEMAS: dict[str, Any] = {
    "f": {
        "type": "object",
        "properties": {
            "text": TEXT,
            "number": NUMBER,
            "either": {"anyOf": [NUMBER, TEXT]},
            "only": {"allOf": [NUMBER]},
            "named": {"$ref": "#/$defs/number"},
            "listed": {"enum": ["1", 2]},
            "many": {"anyOf": [dict(TEXT) for _ in range(300)]},
        },
        "$defs": {"number": NUMBER},
    },
    "g": {},
}
CALL = '{"name": "f", "arguments": {"number": 1}}'
NESTED = {"number": -1.5, "text": [True, None, {"a": "b"}]}


def read(notation: Notation, body: str) -> list[tuple[str, dict[str, Any]]]:
    return read_calls(body, CallForm(notation=notation), SCHEMAS)


@pytest.mark.parametrize(
    ("notation", "body", "calls"),
    [
        (Notation.OBJECT, r'{"name": "f", "arguments": "{\"number\": 1}"}', [("f", {"number": 1})]),
        (Notation.OBJECT, '{"tool_name": "g", "parameters": {}}; ' + CALL, [("g", {}), ("f", {"number": 1})]),
        (Notation.KEYED, '[{"f": {"number": 1}}, {"g": {}}]', [("f", {"number": 1}), ("g", {})]),
        (Notation.NAMED, 'functions.f:0 {"number": 1}', [("f", {"number": 1})]),
        (Notation.OBJECT, CALL.replace("1", '1, "text": "a\n\u2028b"'), [("f", {"number": 1, "text": "a\n\u2028b"})]),
        (Notation.NAMED, 'f {"text": "a}\n"}\n```', [("f", {"text": "a}\n"})]),
        (
            Notation.BRACES,
            'call:f{<|"|>a b<|"|>:<|"|>{"x"}\n<|"|>,c d:[None]}',
            [("f", {"a b": '{"x"}\n', "c d": [None]})],
        ),
        (Notation.BRACES, "call:f{text:Ulm am Rhein,number:7}", [("f", {"text": "Ulm am Rhein", "number": 7})]),
        (Notation.PYTHON, "f(number=1)\ng()", [("f", {"number": 1}), ("g", {})]),
        (Notation.PYTHON, "[f(number=-1.5, text=(True, null, {'a': 'b'}))]", [("f", NESTED)]),
        (Notation.BRACES, 'call:f{text:<|"|>a: "b"<|"|>,number:1}', [("f", {"text": 'a: "b"', "number": 1})]),
    ],
)
def test_a_call_is_read_as_it_is_meant(notation: Notation, body: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert read(notation, body) == calls


@pytest.mark.parametrize(
    ("notation", "body"),
    [
        (Notation.OBJECT, '{"name": "f", "arguments": [1]}'),
        (Notation.OBJECT, '{"name": "h", "arguments": {}}'),
        (Notation.KEYED, "[1]"),
        (Notation.KEYED, '{"f": 1}'),
        (Notation.NAMED, 'f {"number": NaN}'),
        (Notation.XML, "<function=f>lost<parameter=number>1</parameter></function>"),
        (Notation.KEYS, "f\n<arg_key>number</arg_key>lost<arg_value>1</arg_value>"),
        (Notation.PYTHON, "[f()] + [g()]"),
        (Notation.PYTHON, "[f(1)]"),
        (Notation.PYTHON, "[f]"),
        (Notation.PYTHON, "[f(**{})]"),
        (Notation.PYTHON, "[f(number={**{}})]"),
        (Notation.PYTHON, "[f(number={1: 2})]"),
        (Notation.PYTHON, "[f(number=1e999)]"),
        (Notation.PYTHON, "[f(number=-1e999)]"),
        (Notation.PYTHON, "[f(number=1j)]"),
        (Notation.PYTHON, "[f(number=-True)]"),
        (Notation.PYTHON, f"[f(number=0x{'f' * 5000})]"),
        (Notation.PYTHON, f"[f(number=-0x{'f' * 5000})]"),
        (Notation.PYTHON, f"[f(number={'(' * 1000}1{')' * 1000})]"),
        (Notation.BRACES, "f{number:1}"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else value,
)
def test_what_is_no_call_of_a_known_tool_is_none(notation: Notation, body: str) -> None:
    assert read(notation, body) == []


TAG_WITHIN = "a </parameter> </function> b </tool_call> </arg_value>"


@pytest.mark.parametrize(
    ("notation", "before", "behind"),
    [
        (Notation.XML, "<function=f>\n<parameter=text>\n", "\n</parameter>\n</function>"),
        (Notation.XML, "f>\n<parameter=text>\n", "\n</parameter>\n"),
        (Notation.KEYS, "f\n<arg_key>text</arg_key>\n<arg_value>", "</arg_value>\n"),
        (Notation.BRACES, 'call:f{text:<|"|>', '<|"|>}'),
        (Notation.OBJECT, CALL[:-1] + '}; {"name": "f", "arguments": {"text": "', '"}}'),
        (Notation.NAMED, 'f {"text": "', '"}'),
    ],
)
def test_a_tag_within_a_text_ends_nothing(notation: Notation, before: str, behind: str) -> None:
    form = CallForm(notation=notation)
    assert read(notation, before + TAG_WITHIN + behind)[-1] == ("f", {"text": TAG_WITHIN})
    assert is_open(before + "a ", form, SCHEMAS)
    assert is_open(before + "\\u000b", form, SCHEMAS)
    assert not is_open(before + TAG_WITHIN + behind, form, SCHEMAS)


def test_a_parameter_without_its_end_does_not_swallow_the_next_call() -> None:
    assert read(Notation.XML, "<function=f>\n<parameter=number>\n1\n</function>") == [("f", {"number": 1})]


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("text", "1", "1"),
        ("text", '"quoted"', '"quoted"'),
        ("text", "{", "{"),
        ("number", "1", 1),
        ("number", "one", "one"),
        ("either", "1", 1),
        ("either", "True", "True"),
        ("only", "1", 1),
        ("named", "1", 1),
        ("listed", "1", "1"),
        ("listed", "2", 2),
        ("many", "1", 1),
        ("unknown", "None", None),
        ("unknown", "07", "07"),
        ("unknown", "'a'", "'a'"),
        ("unknown", "['a', {'b': True}]", ["a", {"b": True}]),  # as Seed-OSS's template writes lists and objects
        ("text", "['a']", "['a']"),
    ],
)
def test_what_is_written_bare_is_what_the_schema_wants(key: str, written: str, value: object) -> None:
    [(_, arguments)] = read(Notation.XML, f"<function=f>\n<parameter={key}>\n{written}\n</parameter>\n</function>")
    assert arguments == {key: value}
    assert load_finite(json.dumps(arguments)) == arguments
