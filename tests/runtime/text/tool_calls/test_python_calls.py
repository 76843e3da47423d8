"""Calls in Python's notation: nothing inside a quoted text is changed, and no name is reserved."""

from typing import Any

import pytest

from reader_edge_runtime.text.tool_calls.call_form import CallForm, Notation
from reader_edge_runtime.text.tool_calls.call_notation import is_open, read_calls

KINDS = {"text": "string", "path": "string", "from": "string", "number": "integer"}
PARAMETERS = {"type": "object", "properties": {key: {"type": kind} for key, kind in KINDS.items()}}
SCHEMAS: dict[str, Any] = {"write": PARAMETERS, "files.write-all": PARAMETERS, "wait": {}}
PYTHON = CallForm(notation=Notation.PYTHON)
AS_THEY_ARE = CallForm(notation=Notation.PYTHON, quote="'")  # texts without escapes, as LFM2.5's template writes them


def read(body: str, form: CallForm = PYTHON) -> list[tuple[str, dict[str, Any]]]:
    return read_calls(body, form, SCHEMAS)


@pytest.mark.parametrize("line", ["\n", "\r\n", "\r", *"\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"], ids=ascii)
@pytest.mark.parametrize("quote", ['"', "'", '"""', "'''"])
def test_line_breaks_in_texts_stay_what_they_are(quote: str, line: str) -> None:
    text = f"x = 1{line}{line}y = 2"
    body = f"write(text={quote}{text}{quote})\nwait()"
    assert read(body) == [("write", {"text": text}), ("wait", {})]
    assert read(f"[{body}]") == [("write", {"text": text}), ("wait", {})]


@pytest.mark.parametrize("name", ["from", "class", "None", "True", "lambda", "file-path", "a b", "\u00fc"])
def test_arguments_may_have_any_name(name: str) -> None:
    assert read(f"[write({name}=1, number=2)]") == [("write", {name: 1, "number": 2})]


@pytest.mark.parametrize(
    "body",
    ["write()\nwait()", "[write(), wait()]", "[write(),\n wait(),\n]", "write(); wait()", "write(\n)\n\nwait(\n)\n"],
)
def test_calls_stand_in_a_list_or_on_lines(body: str) -> None:
    assert read(body) == [("write", {}), ("wait", {})]
    assert read(body.replace("write", "files.write-all")) == [("files.write-all", {}), ("wait", {})]


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
    [(_, arguments)] = read(f"write(number={written}, text='a',)")
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
    assert read(f"[write(text={written}, path='p')]") == [("write", {"text": text, "path": "p"})]


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
    assert read(f"[write(text='{text}', path='{text}'), wait()]", AS_THEY_ARE) == calls


def test_arguments_and_tools_that_nobody_declared_are_no_part_of_a_text() -> None:
    body = "[write(text='a', mood='b'), other(text='c'), wait()]"
    assert read(body, AS_THEY_ARE) == []  # as it calls another tool, and not with all of that as the first text
    assert read(body.replace("other", "write"), AS_THEY_ARE)[0] == ("write", {"text": "a", "mood": "b"})


@pytest.mark.parametrize("text", ["', b=r[", "\\', b=raw", "', mood=x), other("])
def test_what_looks_like_an_argument_that_nobody_declared_loses_no_call(text: str) -> None:
    assert read(f"[write(text='{text}', path='p'), wait()]", AS_THEY_ARE) == [
        ("write", {"text": text, "path": "p"}),
        ("wait", {}),
    ]


def test_other_quotes_and_inner_texts_have_escapes_all_the_same() -> None:
    body = r"""[write(text="a\n", path=['it\'s', "\n"])]"""
    assert read(body, AS_THEY_ARE) == [("write", {"text": "a\n", "path": ["it's", "\n"]})]


@pytest.mark.parametrize(
    "text", ["'", '"', "f'{x}'", "b'a'", "'a' + 'b'", "'a'.upper()", "Ulm", "1 + 1", "{'a'}", "{'a': 1", "...", "*a"]
)
def test_what_is_no_value_is_no_call(text: str) -> None:
    assert read(f"[write(text={text})]") == []


def test_a_text_that_has_no_end_is_open() -> None:
    for form in (PYTHON, AS_THEY_ARE):
        assert is_open("[write(text='a", form, SCHEMAS)
        assert not is_open("[write(text='a')]", form, SCHEMAS)


def test_a_long_text_of_quotes_is_read_in_time_that_grows_with_it() -> None:
    text = "'\", '" * 40_000
    assert read(f"[write(text='{text}')]", AS_THEY_ARE) == [("write", {"text": text})]
    assert read(f"[write(text='{text}')") == []


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
    assert CallForm.of_template("{% if tools %}<|tool_call_start|>" + source).quote == quote
