"""Calls as model families write them: told from the template, read however the text comes, and never half a call."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge.server.forms.tool_calls import CallReader, Said
from reader_edge.server.forms.tools import ToolUse
from reader_edge_runtime.text.call_form import CallForm, Notation
from reader_edge_runtime.text.thinking import ThinkingForm, ThinkingReader

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}, "is_now": {}},
}
TOOLS = (
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time.now"}},
)
USE = ToolUse(TOOLS, ("weather", "time.now"))
WEATHER = {"city": 'Ulm <b>\n"x"', "days": 2, "more": {"a": [1, None, True, -2.5]}, "is_now": False}
PLAIN = {"city": "Ulm", "days": 2, "is_now": True}
W, P, EMPTY = json.dumps(WEATHER), json.dumps(PLAIN), "{}"
SEP, CALL, END, CALLS, ENDS = (
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("sep", "call\u2581begin", "call\u2581end", "calls\u2581begin", "calls\u2581end")
)

# marks of a template, an answer, its text, its calls
FORMS: dict[str, tuple[str, str, str, list[tuple[str, object]]]] = {
    "hermes": (
        "<tool_call>",
        f'Well.\n<tool_call>\n{{"name": "weather", "arguments": {W}}}\n</tool_call>\n<tool_call>{{"name": "time.now", '
        '"arguments": {}}</tool_call>',
        "Well.\n",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "qwen3-coder": (
        "<tool_call>\n<function=example>\n<parameter=x>",
        'Well.\n<tool_call>\n<function=weather>\n<parameter=city>\nUlm <b>\n"x"\n</parameter>\n<parameter=days>\n2\n'
        '</parameter>\n<parameter=more>\n{"a": [1, null, true, -2.5]}\n</parameter>\n<parameter=is_now>\nFalse\n'
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=time.now>\n</function>\n</tool_call>",
        "Well.\n",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "qwen3-coder without its tag": (
        "<function= <parameter=",
        "Well. <function=weather>\n<parameter=city>\nUlm\n</parameter>\n</function>\n</tool_call>\n",
        "Well. ",
        [("weather", {"city": "Ulm"})],
    ),
    "glm": (
        "<tool_call>{function-name} <arg_key>",
        '<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ulm <b>\n"x"</arg_value>\n<arg_key>days</arg_key>\n'
        '<arg_value>2</arg_value>\n<arg_key>more</arg_key><arg_value>{"a": [1, null, true, -2.5]}</arg_value>'
        "<arg_key>is_now</arg_key><arg_value>false</arg_value>\n</tool_call><tool_call>time.now</tool_call>",
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "llama 3": (
        '<|python_tag|> {"name": x, "parameters": y}',
        f'{{"name": "weather", "parameters": {W}}}; {{"name": "time.now", "parameters": {{}}}}',
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "llama 3 with its tag": (
        '<|python_tag|> {"name": x, "parameters": y}',
        f'<|python_tag|>{{"name": "weather", "parameters": {W}}}',
        "",
        [("weather", WEATHER)],
    ),
    "mistral": (
        "[TOOL_CALLS] [",
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {W}}}, {{"name": "time.now", "arguments": {{}}}}]',
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "mistral with names": (
        "[TOOL_CALLS] [ARGS]",
        f"Well.[TOOL_CALLS]weather[ARGS]{W}[TOOL_CALLS]time.now[CALL_ID]abcdefghi[ARGS]{{}}",
        "Well.",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "gpt-oss": (
        "<|channel|>commentary to=functions.",
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{W}<|call|>",
        "",
        [("weather", WEATHER)],
    ),
    "gpt-oss with the recipient first": (
        "<|channel|>commentary to=functions.",
        f" to=functions.weather<|channel|>commentary json<|message|>{W}",
        "",
        [("weather", WEATHER)],
    ),
    "deepseek v3": (
        CALL + "```json",
        f"Well.{CALLS}{CALL}function{SEP}weather\n```json\n{W}\n```{END}\n{CALL}function{SEP}time.now\n```json\n{{}}\n"
        f"```{END}{ENDS}",
        "Well.",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "deepseek v3.1": (
        CALL,
        f"{CALLS}{CALL}weather{SEP}{W}{END}{CALL}time.now{SEP}{{}}{END}{ENDS}",
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "kimi": (
        "<|tool_call_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{W}<|tool_call_end|><|tool_call_begin|>functions.time.now:1<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "lfm2": (
        "<|tool_call_start|>",
        "<|tool_call_start|>[weather(city='Ulm <b>\\n\"x\"', days=2, more={'a': [1, None, True, -2.5]}, is_now=False), "
        "time.now()]<|tool_call_end|>Well.",
        "Well.",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "olmo 3": (
        "<function_calls>",
        '<function_calls>\nweather(city="Ulm", days=2, is_now=true)\ntime.now()\n</function_calls>',
        "",
        [("weather", PLAIN), ("time.now", {})],
    ),
    "gemma 4": (
        "<|tool_call>call:",
        '<|tool_call>call:weather{city:<|"|>Ulm <b>\n"x"<|"|>,days:2,more:{a:[1,null,true,-2.5]},is_now:false}'
        "<tool_call|><|tool_call>call:time.now{}<tool_call|>",
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "functiongemma": (
        "<start_function_call>",
        "<start_function_call>call:weather{city:<escape>Ulm<escape>,days:2,is_now:true}<end_function_call>",
        "",
        [("weather", PLAIN)],
    ),
    "granite 3": (
        "<|tool_call|>",
        f'<|tool_call|>[{{"name": "weather", "arguments": {W}}}]',
        "",
        [("weather", WEATHER)],
    ),
    "phi 4 mini": (
        "<|tool_call|><|/tool_call|>",
        f'<|tool_call|>[{{"name": "weather", "arguments": {W}}}]<|/tool_call|>',
        "",
        [("weather", WEATHER)],
    ),
    "command": (
        "<|START_ACTION|>",
        f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "weather", "parameters": {W}}}]<|END_ACTION|>',
        "",
        [("weather", WEATHER)],
    ),
    "seed-oss": (
        "<seed:tool_call>",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Ulm</parameter>\n</function>\n</seed:tool_call>",
        "",
        [("weather", {"city": "Ulm"})],
    ),
    "nemotron": (
        "<TOOLCALL>",
        f'<TOOLCALL>[{{"name": "weather", "arguments": {P}}}]</TOOLCALL>',
        "",
        [("weather", PLAIN)],
    ),
    "apertus": (
        "<|tools_prefix|>",
        f'Well.<|tools_prefix|>[{{"weather": {W}}}, {{"time.now": {{}}}}]<|tools_suffix|>',
        "Well.",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "gigachat": (
        "<|function_call|>",
        f'<|function_call|>{{"name": "weather", "arguments": {W}}}',
        "",
        [("weather", WEATHER)],
    ),
    "minimax m1": (
        "<tool_calls>",
        f'<tool_calls>\n{{"name": "weather", "arguments": {W}}}\n{{"name": "time.now", "arguments": {{}}}}\n'
        "</tool_calls>",
        "",
        [("weather", WEATHER), ("time.now", {})],
    ),
    "apriel": (
        "<tool_call> <tool_calls>[",
        f'<tool_calls>[{{"name": "weather", "arguments": {W}, "id": "1"}}]</tool_calls>',
        "",
        [("weather", WEATHER)],
    ),
    "functionary": ("<function=x></function>", f"<function=weather>{W}</function>", "", [("weather", WEATHER)]),
}


def form_of(name: str) -> CallForm:
    return CallForm.of_template("{% if tools %}" + FORMS[name][0])


def read(text: str, size: int, form: CallForm, use: ToolUse = USE) -> tuple[str, list[tuple[str, object]]]:
    reader = CallReader(use, form)
    said: list[Said] = []
    for place in range(0, len(text), size):
        said += reader.push(text[place : place + size], is_last=False)
    said += reader.push("", is_last=True)
    calls: list[tuple[str, str]] = []
    for each in said:
        if each.name is not None:
            calls.append((each.name, ""))
        if each.call >= 0:
            calls[-1] = (calls[-1][0], calls[-1][1] + each.text)
    return "".join(each.text for each in said if each.call < 0), [(name, json.loads(text)) for name, text in calls]


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
def test_the_form_is_told_from_published_templates(name: str) -> None:
    source = (Path(__file__).parents[2] / "data" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    assert CallForm.of_template(source).tag == TAGS[name]


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    "call",
    [
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
        " to=functions.weather<|channel|>commentary json<|message|>",
    ],
)
def test_thinking_before_a_call_is_split_off_first(call: str, size: int) -> None:
    thinking = ThinkingForm.of_template("<|channel|>analysis")
    assert thinking is not None
    reader, calls = ThinkingReader(thinking, is_open=False), CallReader(USE, form_of("gpt-oss"))
    text = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}{P}<|call|>"
    reasoning, said = "", list[Said]()
    for place in range(0, len(text) + size, size):
        thought, rest = reader.push(text[place : place + size], is_last=place >= len(text))
        reasoning += thought
        said += calls.push(rest, is_last=place >= len(text))
    assert reasoning == "Hm."
    assert "".join(each.text for each in said if each.call < 0) == ""
    assert [json.loads("".join(each.text for each in said if each.call == 0))] == [PLAIN]
