"""Calls as model families write them: known from the template, read however the text comes, and never half a call."""

import json
from dataclasses import replace

import pytest

from reader_edge_runtime.text.thinking import ThinkingReader, ThinkingTags
from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, Notation
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, ToolUse
from tests.conftest import ROOT
from tests.reader_edge.server.forms.call_families import FORMS, PLAIN, USE, P, form_of
from tests.reader_edge.server.forms.read_calls import read_calls


def read(text: str, size: int, form: CallSyntax, use: ToolUse = USE) -> tuple[str, list[tuple[str, object]]]:
    content, calls = read_calls(text, size, use, form)
    return content, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("size", [1, 3, 10, 10_000])
@pytest.mark.parametrize("name", FORMS)
def test_calls_of_every_family_are_read(name: str, size: int) -> None:
    _, text, content, calls = FORMS[name]
    assert read(text, size, form_of(name)) == (content, calls)


@pytest.mark.parametrize("name", FORMS)
def test_what_is_no_call_of_a_declared_tool_stays_text(name: str) -> None:
    text = FORMS[name][1].replace("weather", "wether").replace("time.now", "time.new")
    assert read(text, 7, form_of(name)) == (text, [])
    assert read("No call at all, <b>really</b> [1].", 7, form_of(name)) == ("No call at all, <b>really</b> [1].", [])


@pytest.mark.parametrize("name", FORMS)
def test_no_cut_of_a_call_makes_half_a_call(name: str) -> None:
    text, calls = FORMS[name][1], FORMS[name][3]
    for length in range(0, len(text), 3):
        _, found = read(text[:length], 10_000, form_of(name))
        assert found == calls[: len(found)]


@pytest.mark.parametrize(
    ("notation", "body"),
    [
        ("lfm2", "[weather(city=__import__('os'))]"),
        ("lfm2", "[weather(**{'city': 1})]"),
        ("lfm2", "[weather('Ulm')]"),
        ("lfm2", "[weather(city=1e999)]"),
        ("lfm2", "[weather(city=b'x')]"),
        ("lfm2", "[" * 5000),
        ("gemma 4", "call:weather{city:"),
        ("mistral with names", "weather[ARGS][1]"),
        ("mistral with names", "weather[ARGS]{NaN}"),
        ("glm", "weather<arg_key>city</arg_key>"),
        ("qwen3-coder", "<function=weather>x</function>y"),
    ],
)
def test_hostile_calls_are_texts(notation: str, body: str) -> None:
    form = form_of(notation)
    text = form.tags[0][0] + body + form.tags[0][1]
    assert read(text, 50, form) == (text, [])


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    "name",
    [*("hermes", "mistral", "mistral with names"), *("deepseek v3", "gpt-oss", "llama 3", "apertus", "minimax m1")],
)
def test_calls_that_a_grammar_holds_come_in_pieces(name: str, size: int) -> None:
    form = form_of(name)
    held = replace(USE, is_required=True)
    firsts = {
        Notation.OBJECT: f'{{"name": "weather", "{form.arguments}": {P}}}',
        Notation.KEYED: f'{{"weather": {P}}}',
        Notation.NAMED: f"weather{form.between}{P}",
    }
    first = firsts[form.notation]
    second = first.replace("weather", "time.now")
    calls = [("weather", PLAIN), ("time.now", PLAIN)]
    texts = [first, second] if form.joint is not None else [first]
    inner = (form.joint or "").join(form.begin + text + form.end for text in texts)
    assert read(form.opening + inner + form.closing, size, form, held) == ("", calls[: len(texts)])


TAGS = {
    "apertus": "<|tools_prefix|>[",
    "apriel-1.5": "<tool_calls>[",
    "gigachat-3.1": "<|function_call|>",
    "glm-4.6": "<tool_call>",
    "gpt-oss": "<|channel|>commentary to=functions.",
    "granite-3.3": "<|tool_call|>[",
    "granite-4.0": "<tool_call>",
    "minimax-m1": "<tool_calls>",
    "ministral-3": "[TOOL_CALLS]",
    "mistral-nemo": "[TOOL_CALLS][",
    "mistral-small-3.2": "[TOOL_CALLS]",
    "qwen2.5": "<tool_call>",
    "qwen3": "<tool_call>",
    "qwen3-coder": "<tool_call>\n<function=",
    "qwen3.5": "<tool_call>\n<function=",
    "seed-oss": "<seed:tool_call>\n<function=",
    "smollm3": "<tool_call>",
    "step-3.5-flash": "<tool_call>\n<function=",
}


@pytest.mark.parametrize("name", TAGS)
def test_the_form_is_shown_from_published_templates(name: str) -> None:
    source = (ROOT / "tests" / "data" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    assert CallSyntax.of_template(source).tag == TAGS[name]


@pytest.mark.parametrize(
    "source",
    [
        "{{ tools }}<|tool_list_start|>[{{ tool }}]<|tool_list_end|>",
        "{% if tools %}List of tools: [{{ tool }}]{% endif %}",
    ],
)
def test_templates_of_lfm2_that_leave_calls_to_the_content_are_known_by_how_they_list_tools(source: str) -> None:
    assert CallSyntax.of_template(source).tag == "<|tool_call_start|>"


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    "call",
    [
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
        " to=functions.weather<|channel|>commentary json<|message|>",
    ],
)
def test_thinking_before_a_call_is_split_off_first(call: str, size: int) -> None:
    thinking = ThinkingTags.of_template("<|channel|>analysis")
    assert thinking is not None
    reader, calls = ThinkingReader(thinking, is_open=False), ToolCallParser(USE, form_of("gpt-oss"))
    text = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}{P}<|call|>"
    reasoning, output = "", list[AnswerDelta]()
    for place in range(0, len(text) + size, size):
        thought, rest = reader.push(text[place : place + size], is_last=place >= len(text))
        reasoning += thought
        output += calls.push(rest, is_last=place >= len(text))
    assert reasoning == "Hm."
    assert "".join(each.text for each in output if each.call < 0) == ""
    assert [json.loads("".join(each.text for each in output if each.call == 0))] == [PLAIN]
