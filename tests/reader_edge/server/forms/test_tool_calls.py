"""Calls in the text of an answer, tools given to the model, and thoughts before both."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reader_edge.server.completion import AnswerParser
from reader_edge.server.openai.chat_completions import ChatFormatter
from reader_edge.server.openai.response_items import ResponseItems
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Conversation, Engine, EngineConfig, GenerationChunk, GenerationConfig
from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, ToolUse
from tests.reader_edge.package_copy import PackageCopy
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.forms.call_families import read_calls
from tests.reader_edge.server.openai.test_answers import events

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

    monkeypatch.setattr("reader_edge_runtime.text.tool_calls.call_body_parser.json.loads", count)
    text = '<tool_call>\n{"name": "stop", "arguments": {"x": "' + "</tool_call>" * 100
    output, calls = read(text, 6)
    assert (output, calls) == (text, [])
    assert len(lengths) < 300


TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% if m['reasoning_content'] %}<think>{{ m['reasoning_content'] }}</think>{% endif %}{{ m['content'] }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if enable_thinking is not false %}<think>\n{% endif %}{% endif %}"
    "{{ reasoning_effort }}"
)
USER = {"role": "user", "content": "What is tar?"}
CHAT = {"model": "demo", "messages": [USER], "max_tokens": 12, "temperature": 0}
CALL = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
THOUGHT = f"Let me see: {CALL}"
PIECES = [
    *(GenerationChunk("", (), reasoning=sign) for sign in THOUGHT),
    *(GenerationChunk(sign, ()) for sign in "It is" + CALL),
]


@pytest.fixture(scope="module")
def thinking_engine(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("thinking") / "package")
    package.write_file("chat_template.jinja", TEMPLATE.encode())
    return Engine.load(package.folder, EngineConfig(is_calibrated=False))


@pytest.fixture
def served(thinking_engine: Engine) -> Iterator[Served]:
    engine = AsyncEngine(thinking_engine)
    yield Served(engine, ServerSettings("demo", max_tokens=500))
    asyncio.run(engine.close(cancels=True))


def parser() -> AnswerParser:
    return AnswerParser(
        ToolCallParser(ToolUse(({"type": "function", "function": {"name": "time"}},), ("time",)), CallSyntax())
    )


def chunks() -> list[GenerationChunk]:
    """An answer that thinks, says something and calls a tool, in pieces of a character."""
    return [*PIECES[:-1], replace(PIECES[-1], finish_reason="stop")]


def message(served: Served, **fields: Any) -> dict[str, Any]:
    response = served.post("/v1/chat/completions", CHAT | fields)
    assert response.status_code == 200, response.text
    output: dict[str, Any] = response.json()["choices"][0]["message"]
    return output


def test_thoughts_of_a_streamed_message_are_kept_apart_and_hold_no_calls(thinking_engine: Engine) -> None:
    formatter = ChatFormatter(parser(), thinking_engine.tokenizer, shows_thinking=True)
    deltas: list[Any] = [formatter.piece(chunk, number == 0)["delta"] for number, chunk in enumerate(chunks())]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == THOUGHT
    assert "".join(delta.get("content", "") for delta in deltas) == "It is"
    assert all("content" in delta for delta in deltas if "reasoning_content" in delta)
    assert [call["function"]["name"] for delta in deltas for call in delta.get("tool_calls", ())] == ["time"]


def test_thoughts_of_a_response_are_an_item_before_its_text_and_calls() -> None:
    items = ResponseItems(parser())
    shown: list[Any] = [event for chunk in chunks() for event in items.push(chunk)]
    shown += items.end("completed")
    assert [item["type"] for item in items.output] == ["reasoning", "message", "function_call"]
    thought = items.output[0]
    assert thought["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    assert thought["status"] == "completed"
    deltas = [fields["delta"] for kind, fields in shown if kind == "reasoning_text.delta"]
    assert "".join(deltas) == THOUGHT
    assert [fields["output_index"] for _, fields in shown] == sorted(fields["output_index"] for _, fields in shown)


def test_an_answer_whose_prompt_begins_to_think_is_thought_until_it_ends(served: Served) -> None:
    output = message(served)
    assert output["content"] == ""
    assert output["reasoning_content"]
    pieces = events(served.post("/v1/chat/completions", CHAT | {"stream": True}))
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == output["reasoning_content"]
    assert "".join(delta.get("content", "") for delta in deltas) == ""
    assert "reasoning_content" not in message(served, include_reasoning=False)


@pytest.mark.parametrize(
    "fields",
    [{"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}, {"reasoning_effort": "none"}],
)
def test_a_template_is_instructed_not_to_think(served: Served, thinking_engine: Engine, fields: dict[str, Any]) -> None:
    output = message(served, **fields)
    assert "reasoning_content" not in output
    args = {"enable_thinking": False} | ({"reasoning_effort": "none"} if "reasoning_effort" in fields else {})
    expected = thinking_engine.generate(Conversation([USER], template_args=args), GenerationConfig(12))
    assert output["content"] == expected.text


@pytest.mark.parametrize(("is_thinking", "num_tokens"), [(True, 12), (False, 0)])
def test_usage_counts_the_tokens_of_thoughts(served: Served, is_thinking: bool, num_tokens: int) -> None:
    fields = {"chat_template_kwargs": {"enable_thinking": is_thinking}}
    usage = served.post("/v1/chat/completions", CHAT | fields).json()["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["completion_tokens_details"]["reasoning_tokens"] == num_tokens
    sent = {"model": "demo", "input": "What is tar?", "max_output_tokens": 12, "temperature": 0} | fields
    usage = served.post("/v1/responses", sent).json()["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == num_tokens


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_completion_is_all_that_the_model_writes(served: Served, thinking_engine: Engine, is_streamed: bool) -> None:
    prompt = "What is tar? <think>\n"
    body = {"model": "demo", "prompt": prompt, "max_tokens": 12, "temperature": 0, "stream": is_streamed}
    response = served.post("/v1/completions", body)
    shown = events(response) if is_streamed else [response.json()]
    expected = thinking_engine.generate(prompt, GenerationConfig(12)).text
    assert "".join(each["choices"][0]["text"] for each in shown) == expected != ""


def test_an_effort_reaches_the_template(served: Served, thinking_engine: Engine) -> None:
    sent = CHAT | {"reasoning_effort": "high"}
    expected = thinking_engine.encode_prompt(Conversation([USER], template_args={"reasoning_effort": "high"}))
    assert served.post("/v1/chat/completions", sent).json()["usage"]["prompt_tokens"] == len(expected)
    response = {"model": "demo", "input": "What is tar?", "max_output_tokens": 2, "reasoning": {"effort": "high"}}
    assert served.post("/v1/responses", response).json()["usage"]["input_tokens"] == len(expected)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_of_a_history_reach_the_template(served: Served, thinking_engine: Engine, name: str) -> None:
    thought = [USER, {"role": "assistant", "content": "x", name: "hm"}, USER]
    known = [USER, {"role": "assistant", "content": "x", "reasoning_content": "hm"}, USER]
    usage = served.post("/v1/chat/completions", CHAT | {"messages": thought}).json()["usage"]
    assert usage["prompt_tokens"] == len(thinking_engine.encode_prompt(known))
    items = [
        {"role": "user", "content": "What is tar?"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": "x"},
        {"role": "user", "content": "What is tar?"},
    ]
    response = served.post("/v1/responses", {"model": "demo", "input": items, "max_output_tokens": 2})
    assert response.json()["usage"]["input_tokens"] == usage["prompt_tokens"]


@pytest.mark.parametrize("how", [{"continue_final_message": True, "add_generation_prompt": False}, {"prefix": True}])
def test_a_final_message_is_continued(served: Served, thinking_engine: Engine, how: dict[str, Any]) -> None:
    begun = {"role": "assistant", "content": "It packs"}
    fields = {} if "prefix" in how else how
    output = message(served, messages=[USER, begun | (how if "prefix" in how else {})], **fields)
    expected = Conversation([USER, begun], continues_final_message=True)
    assert output["content"] == thinking_engine.generate(expected, GenerationConfig(12)).text
    assert "reasoning_content" not in output


def test_a_form_holds_what_is_written_and_not_what_is_thought(served: Served) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    fields = {"guided_choice": ["yes", "no"], "max_tokens": 12}
    assert message(served, enable_thinking=False, **fields)["content"] in ("yes", "no")
    assert message(served, **fields)["reasoning_content"] == message(served, max_tokens=12)["reasoning_content"]


def test_whole_responses_tell_thoughts_as_an_item(served: Served) -> None:
    sent = {"model": "demo", "input": "What is tar?", "max_output_tokens": 12, "temperature": 0}
    (item,) = served.post("/v1/responses", sent).json()["output"]
    assert item["type"] == "reasoning"
    assert item["content"][0]["text"] == message(served)["reasoning_content"]
    stream = served.post("/v1/responses", sent | {"stream": True}).text
    shown = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]
    deltas = [event["delta"] for event in shown if event["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == item["content"][0]["text"]
