"""Calls as models write them: each notation is read as it is meant, and what is no call of a known tool as none."""

import json
from typing import Any

import pytest

from reader_edge_runtime.text.tool_calls.call_body_parser import is_open, read_calls
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, Notation
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
    return read_calls(body, CallSyntax(notation=notation), SCHEMAS)


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
        (Notation.PYTHON, "\n```python\nf(number=1)\ng()\n```\n", [("f", {"number": 1}), ("g", {})]),
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
    syntax = CallSyntax(notation=notation)
    assert read(notation, before + TAG_WITHIN + behind)[-1] == ("f", {"text": TAG_WITHIN})
    assert is_open(before + "a ", syntax, SCHEMAS)
    assert is_open(before + "\\u000b", syntax, SCHEMAS)
    assert not is_open(before + TAG_WITHIN + behind, syntax, SCHEMAS)


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


KINDS = {"text": "string", "path": "string", "from": "string", "number": "integer"}
PARAMETERS = {"type": "object", "properties": {key: {"type": kind} for key, kind in KINDS.items()}}
PYTHON_SCHEMAS: dict[str, Any] = {"write": PARAMETERS, "files.write-all": PARAMETERS, "wait": {}}
PYTHON = CallSyntax(notation=Notation.PYTHON)
AS_THEY_ARE = CallSyntax(notation=Notation.PYTHON, quote="'")  # texts without escapes, as LFM2.5's template writes them


def read_python(body: str, syntax: CallSyntax = PYTHON) -> list[tuple[str, dict[str, Any]]]:
    return read_calls(body, syntax, PYTHON_SCHEMAS)


@pytest.mark.parametrize("line", ["\n", "\r\n", "\r", *"\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"], ids=ascii)
@pytest.mark.parametrize("quote", ['"', "'", '"""', "'''"])
def test_line_breaks_in_texts_stay_what_they_are(quote: str, line: str) -> None:
    text = f"x = 1{line}{line}y = 2"
    body = f"write(text={quote}{text}{quote})\nwait()"
    assert read_python(body) == [("write", {"text": text}), ("wait", {})]
    assert read_python(f"[{body}]") == [("write", {"text": text}), ("wait", {})]


@pytest.mark.parametrize("name", ["from", "class", "None", "True", "lambda", "file-path", "a b", "\u00fc"])
def test_arguments_may_have_any_name(name: str) -> None:
    assert read_python(f"[write({name}=1, number=2)]") == [("write", {name: 1, "number": 2})]


@pytest.mark.parametrize(
    "body",
    ["write()\nwait()", "[write(), wait()]", "[write(),\n wait(),\n]", "write(); wait()", "write(\n)\n\nwait(\n)\n"],
)
def test_calls_stand_in_a_list_or_on_lines(body: str) -> None:
    assert read_python(body) == [("write", {}), ("wait", {})]
    assert read_python(body.replace("write", "files.write-all")) == [("files.write-all", {}), ("wait", {})]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("true", True),
        ("None", None),
        ("null", None),
        ("07", 7),
        ("-0", 0),
        ("1_000", 1000),
        ("0x1F", 31),
        ("+5", 5),
        (".5", 0.5),
        ("1e+16", 1e16),
        ("9" * 60, int("9" * 60)),
        ("[1, (2, 'a'), {\"b\": [False, null],},]", [1, [2, "a"], {"b": [False, None]}]),
        ("()", []),
        ("(1)", 1),
        ("(1,)", [1]),
    ],
)
def test_values_are_python_s_or_json_s(written: str, value: object) -> None:
    [(_, arguments)] = read_python(f"write(number={written}, text='a',)")
    assert arguments == {"number": value, "text": "a"}
    assert type(arguments["number"]) is type(value)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r'"a\n\t\\n\"\u00e9\x41\101"', 'a\n\t\\n"\u00e9AA'),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\d+ C:\ \/"', r"\d+ C:\ \/"),
        ('"one \\\ntwo"', "one \\\ntwo"),
        ('"a" \'b\'\n"""c"""', "abc"),
        (r'r"a\n"', r"a\n"),
        (r'u"a\n"', "a\n"),
        ('f"a"', "a"),
        ('"say "hi" to them"', 'say "hi" to them'),
        ("'sed -n '1,9p' f.py'", "sed -n '1,9p' f.py"),
    ],
)
def test_texts_have_python_s_escapes_and_what_is_none_stays(written: str, text: str) -> None:
    assert read_python(f"[write(text={written}, path='p')]") == [("write", {"text": text, "path": "p"})]


@pytest.mark.parametrize(
    "text",
    [
        r"C:\new\table",
        r"it\'s",
        "it's",
        "'",
        "''",
        "'''a'''",
        "'a' 'b'",
        "f = open('a', mode='r')\nprint('(', ')')",
        "sed -n '1,9p' f.py",
        "[1, 'a'], {'b': \"c\"}",
        "ends\\",
    ],
)
def test_texts_without_escapes_are_as_they_stand(text: str) -> None:
    calls = [("write", {"text": text, "path": text}), ("wait", {})]
    assert read_python(f"[write(text='{text}', path='{text}'), wait()]", AS_THEY_ARE) == calls


def test_what_nobody_declared_is_no_part_of_a_text() -> None:
    body = "[write(text='a', mood='b'), other(text='c'), wait()]"
    assert read_python(body, AS_THEY_ARE) == []  # as it calls another tool, and not with all of that as the first text
    assert read_python(body.replace("other", "write"), AS_THEY_ARE)[0] == ("write", {"text": "a", "mood": "b"})
    assert read(Notation.XML, "<function=f>\n<parameter=number>\n1\n</function>") == [("f", {"number": 1})]


@pytest.mark.parametrize("text", ["', b=r[", "\\', b=raw", "', mood=x), other("])
def test_what_looks_like_an_argument_that_nobody_declared_loses_no_call(text: str) -> None:
    assert read_python(f"[write(text='{text}', path='p'), wait()]", AS_THEY_ARE) == [
        ("write", {"text": text, "path": "p"}),
        ("wait", {}),
    ]


@pytest.mark.parametrize(
    "text", ["'", '"', "f'{x}'", "b'a'", "'a' + 'b'", "'a'.upper()", "Ulm", "1 + 1", "{'a'}", "{'a': 1", "...", "*a"]
)
def test_what_is_no_value_is_no_call(text: str) -> None:
    assert read_python(f"[write(text={text})]") == []


def test_texts_end_at_their_quotes_or_stay_open() -> None:
    for syntax in (PYTHON, AS_THEY_ARE):
        assert is_open("[write(text='a", syntax, PYTHON_SCHEMAS)
        assert not is_open("[write(text='a')]", syntax, PYTHON_SCHEMAS)
    body = r"""[write(text="a\n", path=['it\'s', "\n"])]"""
    assert read_python(body, AS_THEY_ARE) == [("write", {"text": "a\n", "path": ["it's", "\n"]})]


def test_a_long_text_of_quotes_is_read_in_time_that_grows_with_it() -> None:
    text = "'\", '" * 40_000
    assert read_python(f"[write(text='{text}')]", AS_THEY_ARE) == [("write", {"text": text})]
    assert read_python(f"[write(text='{text}')") == []


@pytest.mark.parametrize(
    ("source", "quote"),
    [
        ("""{{ "'" + value + "'" }}""", "'"),
        ("""{{ '\\'' ~ call.value ~ '\\'' }}""", "'"),
        ("""{{ '"' ~ value ~ '"' }}""", '"'),
        ("{{ value | tojson }}", ""),
    ],
)
def test_the_quote_is_the_template_s(source: str, quote: str) -> None:
    assert CallSyntax.of_template("{% if tools %}<|tool_call_start|>" + source).quote == quote
