"""`/v1/responses` with functions: called, streamed and answered, as OpenAI's own client understands them."""

import json
from typing import Any

import pytest

from reader_edge.server.completion import AnswerParser
from reader_edge.server.openai.response_items import ResponseItems
from reader_edge_runtime import Conversation, Engine, GenerationChunk, GenerationConfig, Message
from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.openai.test_refusals import assert_refused
from tests.reader_edge.server.openai.test_responses import events, with_client

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"]}
SCHEMA["additionalProperties"] = False
WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
TIME: dict[str, Any] = {"type": "function", "name": "time", "description": "The time."}
SENT = {"model": "demo", "input": "What is the weather?", "tools": [WEATHER, TIME], "max_output_tokens": 300}
CALLED = SENT | {"tool_choice": {"type": "function", "name": "weather"}}


def test_a_function_by_name_is_called_and_shown_with_its_tools(served: Served) -> None:
    response = with_client(served, lambda client: client.responses.create(**CALLED))
    (call,) = response.output
    assert (call.type, call.name, call.status, len(call.call_id)) == ("function_call", "weather", "completed", 9)
    assert json.loads(call.arguments) in ({"days": 1}, {"days": 2})
    assert response.status == "completed"
    assert [tool.name for tool in response.tools] == ["weather", "time"]
    assert (response.tools[0].strict, response.tool_choice.name) == (True, "weather")
    cut = with_client(served, lambda client: client.responses.create(**CALLED | {"max_output_tokens": 12}))
    assert (cut.status, cut.output[0].status) == ("incomplete", "incomplete")


def test_the_client_s_own_helper_follows_streamed_calls(served: Served) -> None:
    sent = SENT | {"tool_choice": "required", "parallel_tool_calls": False, "extra_body": {"seed": 5}}

    async def ask(client: Any) -> tuple[Any, list[Any], Any]:
        whole = await client.responses.create(**sent)
        async with client.responses.stream(**sent) as stream:
            return whole, await events(stream), await stream.get_final_response()

    whole, shown, final = with_client(served, ask)
    assert [event.sequence_number for event in shown] == list(range(len(shown)))
    assert [call.arguments for call in final.output] == [call.arguments for call in whole.output]
    for index, call in enumerate(final.output):
        own = [event for event in shown if getattr(event, "output_index", None) == index]
        ends = ["response.function_call_arguments.done", "response.output_item.done"]
        assert [own[0].type, *[event.type for event in own[-2:]]] == ["response.output_item.added", *ends]
        assert "".join(event.delta for event in own[1:-2]) == own[-2].arguments == call.arguments
        assert own[-1].item.call_id == own[0].item.call_id == call.call_id
    assert shown[-1].type == f"response.{whole.status}"


def test_calls_and_what_functions_wrote_are_a_conversation(served: Served, chat_engine: Engine) -> None:
    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": f"call_{name}", "name": name, "arguments": '{"days": 1}'}

    output = [
        {"role": "user", "content": "What is the weather?"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        *(call("weather") | {"id": "fc_1", "status": "completed"}, call("time")),
        {"type": "function_call_output", "call_id": "call_weather", "output": "rain"},
        {"type": "function_call_output", "call_id": "call_time", "output": [{"type": "input_text", "text": "noon"}]},
    ]
    calls = [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": {"days": 1}}}
        for name in ("weather", "time")
    ]
    messages: list[Message] = [
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": calls},
        {"role": "tool", "content": "rain", "tool_call_id": "call_weather"},
        {"role": "tool", "content": "noon", "tool_call_id": "call_time"},
    ]
    tools = [{"type": "function", "function": {"name": "time", "description": "The time."}}]
    expected = chat_engine.generate(Conversation(messages, tools), GenerationConfig(max_tokens=9))
    sent = {"model": "demo", "input": output, "tools": [TIME], "temperature": 0, "max_output_tokens": 9}
    response = with_client(served, lambda client: client.responses.create(**sent))
    assert response.output_text == expected.text
    assert response.usage.input_tokens == expected.stats.num_prompt_tokens


def test_texts_and_calls_in_turn_are_items_in_turn() -> None:
    calls = [f'<tool_call>\n{{"name": "time", "arguments": {{"at": {n}}}}}\n</tool_call>' for n in (1, 2)]
    text = f"First.{calls[0]}{calls[1]} Then this."
    use = ToolUse(({"type": "function", "function": {"name": "time"}},), ("time",))
    items = ResponseItems(AnswerParser(ToolCallParser(use, CallSyntax())))
    chunks = [GenerationChunk(sign, (), "stop" if at == len(text) - 1 else None) for at, sign in enumerate(text)]
    shown: list[Any] = [event for chunk in chunks for event in items.push(chunk)]
    shown += items.end("incomplete")
    assert [item["type"] for item in items.output] == ["message", "function_call", "function_call", "message"]
    assert [item["status"] for item in items.output] == ["completed"] * 3 + ["incomplete"]
    assert [item.get("arguments") for item in items.output] == [None, '{"at": 1}', '{"at": 2}', None]
    indices = [fields["output_index"] for _, fields in shown]
    assert indices == sorted(indices)
    assert len({item["id"] for item in items.output}) == 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"tools": [{"type": "function", "function": {"name": "a"}}]},
            "There is no field 'tools[0].function': leave it out.",
        ),
        (
            {"tools": [{"type": "function", "name": "a", "parameters": 1}]},
            "'tools[0].parameters' is 1, but must be a JSON schema, an object.",
        ),
        ({"tools": [1]}, "'tools[0]' is 1, but must be an object with 'type' and 'name'."),
        ({"tools": [TIME, TIME]}, "has the name 'time' twice"),
        ({"tools": [], "tool_choice": "required"}, "but there are no 'tools': give some"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "time"}}},
            "There is no field 'tool_choice.function': leave it out.",
        ),
        (
            {"tool_choice": {"type": "function", "name": ["time"]}},
            "'tool_choice.name' is ['time'], but must be a text.",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "'tool_choice.type' is 'allowed_tools', but must be 'function'.",
        ),
    ],
)
def test_what_is_no_function_is_refused(served: Served, fields: dict[str, object], words: str) -> None:
    assert_refused(served.post("/v1/responses", SENT | fields), 400, words)
