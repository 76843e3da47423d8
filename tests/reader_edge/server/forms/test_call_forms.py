"""Calls as model families write them, whole and cut: known from the template, read however the text comes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from reader_edge_runtime.text.thinking import ThinkingReader, ThinkingTags
from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, Notation
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, ToolUse
from tests.conftest import ROOT
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.forms.call_families import FORMS, PLAIN, USE, P, form_of, read_calls
from tests.reader_edge.server.ollama_requests import lines, whole
from tests.reader_edge.server.openai.test_answers import events


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
    "glm-4.7-flash": "<tool_call>",
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


XML_CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "<parameter=is_now>\nTrue\n</parameter>\n</function>\n</tool_call>"
)
HERMES_CALL = f'<tool_call>\n{{"arguments": {P}, "name": "weather"}}\n</tool_call>'
CHANNELS = "<|channel|>analysis to=functions."
# What a family's template writes, whether its prompt begins the thought, and an answer that thinks "Hm.", then calls.
THINKING_CALLS: dict[str, tuple[str, bool, str]] = {
    "gpt-oss": (
        CHANNELS,
        False,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{P}<|call|>",
    ),
    "gpt-oss, the recipient first": (
        CHANNELS,
        False,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        f" to=functions.weather<|channel|>commentary json<|message|>{P}<|call|>",
    ),
    "Nemotron 3": (
        "<tool_call>\n<function=name>\n<parameter=key>\nvalue <think></think>",
        True,
        f"Hm.\n</think>\n{XML_CALL}\n",
    ),
    "Nemotron Nano 2": (
        "<TOOLCALL>[]</TOOLCALL> <think></think>",
        True,
        f'Hm.\n</think>\n\n<TOOLCALL>[{{"name": "weather", "arguments": {P}}}]</TOOLCALL>',
    ),
    "Qwen3-Next-Thinking": ("<tool_call>{}</tool_call> </think>", True, f"Hm.\n</think>\n\n{HERMES_CALL}"),
    "ERNIE 4.5 Thinking": ("<tool_call> <response>", True, f"Hm.\n</think>\n\n\n{HERMES_CALL}\n"),
    "GLM-4.7-Flash": (
        "<tool_call>name<arg_key> <think>",
        True,
        "Hm.</think><tool_call>weather<arg_key>city</arg_key><arg_value>Ulm</arg_value><arg_key>days</arg_key>"
        "<arg_value>2</arg_value><arg_key>is_now</arg_key><arg_value>true</arg_value></tool_call>",
    ),
    "Hunyuan": (
        "<tool_calls> <tool_call>name\n```json\n{}\n```</tool_call> <answer> <think>",
        False,
        f"<think>\nHm.\n</think>\n<answer>\n<tool_calls><tool_call>weather\n```json\n{P}\n```</tool_call>"
        "</tool_calls>\n</answer>",
    ),
    "MiniCPM5": (
        '<function name="f"><param name="k">v</param></function> <think>',
        True,
        'Hm.\n</think>\n\n<function name="weather"><param name="city">Ulm</param><param name="days">2</param>'
        '<param name="is_now">True</param></function>',
    ),
    "Apertus": (
        "<|tools_prefix|> <|inner_prefix|>",
        False,
        f'<|inner_prefix|>Hm.<|inner_suffix|><|tools_prefix|>[{{"weather": {P}}}]<|tools_suffix|>',
    ),
    "Muse Glimmer": (
        "<atem:function_calls>",
        False,
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="weather">\n<atem:parameter name="city">Ulm</atem:parameter>\n<atem:parameter '
        'name="days">2</atem:parameter>\n<atem:parameter name="is_now">true</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls>",
    ),
}


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("name", THINKING_CALLS)
def test_thinking_before_a_call_is_split_off_first(name: str, size: int) -> None:
    source, is_open, text = THINKING_CALLS[name]
    thinking = ThinkingTags.of_template(source)
    assert thinking is not None
    reader, calls = (
        ThinkingReader(thinking, is_open),
        ToolCallParser(USE, CallSyntax.of_template("{{ tools }}" + source)),
    )
    reasoning, output = "", list[AnswerDelta]()
    for place in range(0, len(text) + size, size):
        thought, rest = reader.push(text[place : place + size], is_last=place >= len(text))
        reasoning += thought
        output += calls.push(rest, is_last=place >= len(text))
    assert reasoning == "Hm."
    assert "".join(each.text for each in output if each.call < 0).strip() == ""
    assert [json.loads("".join(each.text for each in output if each.call == 0))] == [PLAIN]


@pytest.mark.parametrize(
    "source",
    [
        "<tools></tools> <tool_call>\n{'arguments': <args-dict>, 'name': <function-name>}\n</tool_call>",  # Falcon-H1
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',  # Qwen3-Next-Instruct
    ],
)
def test_families_without_thoughts_call_as_hermes_does(source: str) -> None:
    assert ThinkingTags.of_template(source) is None
    assert read(HERMES_CALL, 7, CallSyntax.of_template("{{ tools }}" + source)) == ("", [("weather", PLAIN)])


HELD = [name for name in FORMS if form_of(name).notation not in (Notation.PYTHON, Notation.BRACES)]
ONE = replace(USE, names=("weather",), is_required=True, is_parallel=False)
SEVERAL = replace(USE, is_required=True)
USER = {"role": "user", "content": "What is the weather?"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}}
NAMED = {"type": "function", "function": {"name": "weather"}}
CHAT = {"model": "demo", "messages": [USER], "tools": [TOOL], "temperature": 1, "seed": 4}


def call_texts(form: CallSyntax, *names: str) -> str:
    """Calls of tools of these names, as a grammar holds them."""
    written = json.dumps(PLAIN)
    texts = []
    for name in names:
        match form.notation:
            case Notation.OBJECT:
                text = f'{{"{form.name}": "{name}", "{form.arguments}": {written}}}'
            case Notation.KEYED:
                text = f'{{"{name}": {written}}}'
            case Notation.NAMED:
                text = name + form.between + written
            case Notation.XML:
                values = [f"<parameter={key}>\n{_spelled(value)}\n</parameter>\n" for key, value in PLAIN.items()]
                text = f"{name}>\n{''.join(values)}"
            case _:
                values = [
                    f"\n<arg_key>{key}</arg_key>\n<arg_value>{_spelled(value)}</arg_value>"
                    for key, value in PLAIN.items()
                ]
                text = name + "".join(values)
        texts.append(form.begin + text + form.end)
    return form.opening + (form.joint or "").join(texts) + form.closing


def _spelled(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("is_formed", [False, True])
@pytest.mark.parametrize("name", HELD)
def test_of_a_cut_call_name_and_arguments_so_far_are_shown(name: str, is_formed: bool, size: int) -> None:
    form, written = form_of(name), json.dumps(PLAIN)
    text = call_texts(form, "weather")
    is_bare = is_formed and not form.tag  # where a piece of JSON may be the answer itself
    use = replace(ONE, is_required=not is_formed)
    for length in range(1, len(text)):
        content, calls = read_calls(text[:length], size, use, form, is_formed)
        if is_bare and not calls:
            assert text.startswith(content)
            continue
        assert content == "", text[:length]
        assert [called for called, _ in calls] == (["weather"] if text[:length].strip() else []), text[:length]
        assert all(written.startswith(arguments) for _, arguments in calls), (text[:length], calls)
    assert read_calls(text, size, use, form, is_formed) == ("", [("weather", written)])


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("name", HELD)
def test_a_cut_call_is_shown_once_its_name_is_certain(name: str, size: int) -> None:
    form = form_of(name)
    called = ["weather", "time.now"] if form.joint is not None else ["time.now"]
    text = call_texts(form, *called)
    for length in range(len(text)):
        content, calls = read_calls(text[:length], size, SEVERAL, form)
        output = [
            each for each in called if each[:1] in text[:length].replace(form.begin, "").replace(form.opening, "")
        ]
        assert content == ""
        assert [each for each, _ in calls] == called[: len(calls)]
        whole_names = sum(each in text[:length] for each in called)
        assert whole_names <= len(calls) <= len(output) or not form.tag


@pytest.mark.parametrize("name", HELD)
def test_beside_a_free_text_a_strict_call_that_is_cut_leaves_no_tag(name: str) -> None:
    form = form_of(name)
    if form.notation is Notation.NAMED and (not form.tag or form.tag.startswith("<|channel|>")):
        pytest.skip("no text is free before a call of this form, which begins as texts do or with a channel")
    text = call_texts(form, "weather")
    strict = replace(USE, is_strict=True)
    for length in range(len(form.tag), len(text)):
        before = "Well. " if form.tag else ""
        content, calls = read_calls(before + text[:length], 7, strict, form)
        assert content == before or text[:length] == ""
        assert len(calls) <= 1
    assert read_calls("Is 1 <", 7, strict, form) == ("Is 1 <", [])


def test_json_that_is_cut_beside_tools_stays_the_answer() -> None:
    use = ToolUse(USE.tools, USE.names)
    for name in ("hermes", "llama 3", "mistral", "glm"):
        for text in ('{"a": "x <', '{"a": "<tool_', '["[TOOL', "{", "12", '{"name": "wea'):
            assert read_calls(text, 3, use, form_of(name), is_formed=True) == (text, [])


@pytest.fixture
def grammars() -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")


@pytest.mark.parametrize("max_tokens", [1, 2, 6, 12])
def test_a_served_call_that_is_cut_comes_with_its_arguments_so_far(
    served: Served, grammars: None, max_tokens: int
) -> None:
    body = CHAT | {"tool_choice": NAMED, "max_tokens": max_tokens}
    choice = served.post("/v1/chat/completions", body).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], choice["message"]["content"]) == ("weather", None)
    assert choice["finish_reason"] == "length"
    pieces = [event["choices"][0] for event in events(served.post("/v1/chat/completions", body | {"stream": True}))]
    parts = [part for piece in pieces for part in piece["delta"].get("tool_calls", ())]
    assert parts[0]["function"]["name"] == "weather"
    assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"]
    assert "".join(piece["delta"].get("content") or "" for piece in pieces) == ""
    assert pieces[-1]["finish_reason"] == "length"
    flat = {"type": "function"} | TOOL["function"]  # type: ignore[operator]
    sent = {"model": "demo", "input": "What is the weather?", "tools": [flat], "temperature": 1, "seed": 4}
    sent |= {"tool_choice": {"type": "function", "name": "weather"}, "max_output_tokens": max_tokens}
    response = served.post("/v1/responses", sent).json()
    (item,) = response["output"]
    assert (item["type"], item["name"], item["status"]) == ("function_call", "weather", "incomplete")
    assert (response["status"], item["arguments"]) == ("incomplete", call["function"]["arguments"])


def test_beside_a_form_a_cut_call_is_no_text(served: Served, grammars: None) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "maxProperties": 0}}}
    output = set()
    for seed in range(8):
        for max_tokens in (1, 3, 8):
            body: dict[str, Any] = CHAT | {"response_format": form, "max_tokens": max_tokens, "seed": seed}
            choice = served.post("/v1/chat/completions", body).json()["choices"][0]
            calls = choice["message"].get("tool_calls", ())
            content = choice["message"]["content"] or ""
            assert "{}".startswith(content)
            assert not (calls and content)
            output.add(bool(calls))
    assert output == {True, False}


@pytest.mark.parametrize("max_tokens", [1, 6, 12])
def test_ollama_s_face_leaves_a_cut_call_out(served: Served, grammars: None, max_tokens: int) -> None:
    strict = {"type": "function", "function": TOOL["function"] | {"strict": True}}  # type: ignore[operator]
    only_calls = {"type": "object", "maxProperties": 0}
    for seed in range(4):
        options = {"num_predict": max_tokens, "seed": seed, "temperature": 1}
        body = {"model": "demo", "messages": [USER], "tools": [strict], "format": only_calls, "options": options}
        answer = whole(served, "/api/chat", body)
        assert "{}".startswith(answer["message"]["content"])
        assert "tool_calls" not in answer["message"]
        shown = lines(served, "/api/chat", body)
        assert "{}".startswith("".join(line["message"]["content"] for line in shown))
        assert shown[-1]["done_reason"] == answer["done_reason"]
        assert answer["done_reason"] == "length" or answer["message"]["content"] == "{}"
