"""Calls of tools in an answer's text: the same however the text comes in pieces, and only what was declared."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, ToolUse
from tests.reader_edge.server.forms.read_calls import read_calls

NAMES = ("look_up", "stop")
TOOLS = tuple({"type": "function", "function": {"name": name}} for name in NAMES)
AUTO, HELD = ToolUse(TOOLS, NAMES), ToolUse(TOOLS, NAMES, is_required=True)
FIRST = '{"name": "look_up", "arguments": {"word": "a \\"b\\" }</tool_call>{ \\\\", "in": {"x": [1]}}}'
SECOND = '{"name": "stop", "arguments": {}}'
FIRST_ARGUMENTS = {"word": 'a "b" }</tool_call>{ \\', "in": {"x": [1]}}


def tagged(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


def read(
    text: str, size: int, use: ToolUse = AUTO, form: CallSyntax | None = None
) -> tuple[str, list[tuple[str, str]]]:
    return read_calls(text, size, use, form or CallSyntax())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 11, 1000])
@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        ("Just a < text <tool_cal", "Just a < text <tool_cal", []),
        (tagged(FIRST), "", ["look_up"]),
        ("Sure.\n" + tagged(FIRST) + "\n" + tagged(SECOND) + "\n", "Sure.\n", ["look_up", "stop"]),
        (tagged(SECOND) + " Done.\n", "Done.\n", ["stop"]),
        (tagged(f"[{FIRST}, {SECOND}]"), "", ["look_up", "stop"]),
        (f"[TOOL_CALLS] [{FIRST}]", "", ["look_up"]),
        (f" {FIRST}".replace("arguments", "parameters", 1), "", ["look_up"]),
        ("<tool_call>\n" + FIRST, "", ["look_up"]),
        (tagged('{"name": "other", "arguments": {}}'), tagged('{"name": "other", "arguments": {}}'), []),
        (tagged('{"name": "stop", "arguments": 5}'), tagged('{"name": "stop", "arguments": 5}'), []),
        (tagged("{name: stop}") + tagged(SECOND), tagged("{name: stop}"), ["stop"]),
        ('{"name": "stop"', '{"name": "stop"', []),
        ("<tool_call>\n" + FIRST[:30], "<tool_call>\n" + FIRST[:30], []),
        ("[" * 3000, "[" * 3000, []),
        ("", "", []),
    ],
)
def test_calls_are_found_however_the_text_comes(text: str, content: str, names: list[str], size: int) -> None:
    output, calls = read(text, size)
    assert output == content
    assert [name for name, _ in calls] == names
    for name, arguments in calls:
        assert json.loads(arguments) == (FIRST_ARGUMENTS if name == "look_up" else {})


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("form", [CallSyntax(), CallSyntax("", "", "parameters")])
def test_calls_that_a_grammar_holds_come_as_they_are_written(form: CallSyntax, size: int) -> None:
    texts = [each.replace("arguments", form.arguments, 1) for each in (FIRST, SECOND)]
    text = "\n".join(form.begin + each + form.end for each in (texts if form.begin else texts[:1]))
    output, calls = read(text, size, HELD, form)
    assert output == ""
    expected = [("look_up", FIRST[len('{"name": "look_up", "arguments": ') : -1]), ("stop", "{}")]
    assert calls == (expected if form.begin else expected[:1])
    cut = text[:70]
    assert read(cut, size, HELD, form)[1] == [("look_up", cut[cut.index(form.arguments) + len(form.arguments) + 3 :])]


def test_held_arguments_come_before_the_call_has_ended() -> None:
    reader = ToolCallParser(HELD, CallSyntax())
    output = reader.push('<tool_call>\n{"name": "look_up", "arguments": {"word": "lo', is_last=False)
    assert output == [AnswerDelta("", 0, "look_up"), AnswerDelta('{"word": "lo', 0)]
    assert output[0].fields["function"] == {"name": "look_up", "arguments": ""}
    assert re.fullmatch("[a-zA-Z0-9]{9}", output[0].fields["id"])  # as Mistral's templates insist on
    assert reader.push("ng", is_last=False)[0].fields == {"index": 0, "function": {"arguments": "ng"}}


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_arguments_that_are_no_json_are_a_text(value: str) -> None:
    text = f'{{"name": "look_up", "arguments": {{"word": {value}}}}}'
    assert read(text, 1000) == (text, [])
    assert read(tagged(text), 7) == (tagged(text), [])


def test_halves_of_characters_in_arguments_stay_escaped() -> None:
    output, calls = read('{"name": "look_up", "arguments": {"word": "\\ud800 \u00e9"}}', 1000)
    assert (output, calls) == ("", [("look_up", '{"word": "\\ud800 \\u00e9"}')])


@pytest.mark.parametrize("begin", ["", "[TOOL_CALLS]", "<|python_tag|>"])
def test_a_strict_call_is_one_that_a_grammar_holds(begin: str) -> None:
    strict = replace(AUTO, is_strict=True)
    assert read(begin + FIRST, 1000, strict) == (begin + FIRST, [])
    assert read(tagged(FIRST), 1000, strict)[1] != []
    bare = CallSyntax("", "", "parameters")
    is_held = not begin  # a template without a tag asks for the bare object
    assert (read(begin + FIRST, 1000, strict, bare)[1] != []) == is_held


def test_of_one_wanted_call_the_first_counts() -> None:
    single = replace(AUTO, is_parallel=False)
    for size in (1, 7, 1000):
        for text in (f"[{FIRST}, {SECOND}]", tagged(FIRST) + "\n" + tagged(SECOND), tagged(f"[{FIRST}, {SECOND}]")):
            output, calls = read(text, size, single)
            assert (output, [name for name, _ in calls]) == ("", ["look_up"])
        broken = tagged("{name: stop}")
        assert read(tagged(FIRST) + "x" + broken, size, single)[0] == "x" + broken


def test_ends_of_calls_during_a_string_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    loads = json.loads

    def count(text: str, **how: Any) -> object:
        lengths.append(len(text))
        return loads(text, **how)

    monkeypatch.setattr("reader_edge_runtime.text.tool_calls.call_notation.json.loads", count)
    text = '<tool_call>\n{"name": "stop", "arguments": {"x": "' + "</tool_call>" * 100
    output, calls = read(text, 6)
    assert (output, calls) == (text, [])
    assert len(lengths) < 300
