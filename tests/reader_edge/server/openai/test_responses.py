"""Responses: their events, items and tools."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from reader_edge.server.completion import AnswerParser
from reader_edge.server.openai.response_items import ResponseItems
from reader_edge_runtime import Conversation, Engine, GenerationChunk, GenerationConfig, Message
from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.tool_use import ToolUse
from tests.reader_edge.server.conftest import LIMIT_S, Served
from tests.reader_edge.server.openai.test_refusals import assert_refused

openai = pytest.importorskip("openai", reason="the official client is not installed: pip install 'reader-edge[dev]'")
pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")


MESSAGES: list[Message] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is tar?"}]
SENT = {"model": "demo", "instructions": "Be short.", "input": "What is tar?", "temperature": 0}
ENDS = {"response.completed", "response.incomplete"}


def with_client(served: Served, work: Callable[[Any], Awaitable[Any]]) -> Any:
    """What the official client gets."""

    async def ask() -> Any:
        async with served.client() as http:
            url = f"{http.base_url}/v1"
            client = openai.AsyncOpenAI(base_url=url, api_key="none", http_client=http, max_retries=0)
            return await asyncio.wait_for(work(client), LIMIT_S)

    return asyncio.run(ask())


async def events(stream: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in stream]


def test_a_response_is_the_chat_s_answer(served: Served, chat_engine: Engine) -> None:
    expected = chat_engine.generate(MESSAGES, GenerationConfig(max_tokens=30))
    response = with_client(served, lambda client: client.responses.create(**SENT, max_output_tokens=30))
    assert response.output_text == expected.text
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.model, response.object, response.output[0].role) == ("demo", "response", "assistant")
    usage, stats = response.usage, expected.stats
    assert (usage.input_tokens, usage.output_tokens) == (stats.num_prompt_tokens, 30)
    assert usage.total_tokens == usage.input_tokens + 30


def test_a_response_tells_the_penalties_that_were_requested(served: Served) -> None:
    sent = SENT | {"max_output_tokens": 2, "frequency_penalty": 1.5, "presence_penalty": -0.5}
    shown = served.post("/v1/responses", sent).json()
    assert (shown["frequency_penalty"], shown["presence_penalty"]) == (1.5, -0.5)


def test_a_response_tells_the_instructions_and_metadata_that_were_given(served: Served) -> None:
    given = {"instructions": "Be short.", "metadata": {"a": "b"}}
    shown = served.post("/v1/responses", SENT | {"max_output_tokens": 2} | given).json()
    assert {name: shown[name] for name in given} == given
    bare = {name: value for name, value in SENT.items() if name != "instructions"}
    shown = served.post("/v1/responses", bare | {"max_output_tokens": 2}).json()
    assert (shown["instructions"], shown["metadata"]) == (None, {})


def test_messages_in_parts_are_understood_as_a_conversation(served: Served, chat_engine: Engine) -> None:
    parts = [{"type": "input_text", "text": "What is "}, {"type": "input_text", "text": "tar?"}]
    output = [{"type": "output_text", "text": "A program.", "annotations": []}]
    conversation = [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "role": "user", "content": parts},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": output},
        {"role": "user", "content": "And git?"},
    ]
    texts = ["Be short.", "What is tar?", "A program.", "And git?"]
    roles = ["system", "user", "assistant", "user"]
    messages: list[Message] = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    sent = {"model": "demo", "input": conversation, "temperature": 0, "max_output_tokens": 9}
    response = with_client(served, lambda client: client.responses.create(**sent))
    assert response.output_text == chat_engine.generate(messages, GenerationConfig(max_tokens=9)).text


@pytest.mark.parametrize("extra", [{}, {"stop": ["tar"]}])
def test_a_stream_has_openai_s_events_and_ends_with_the_whole(served: Served, extra: dict[str, object]) -> None:
    async def ask(client: Any) -> tuple[Any, list[Any]]:
        sent = {**SENT, "max_output_tokens": 30, "extra_body": extra}
        return await client.responses.create(**sent), await events(await client.responses.create(**sent, stream=True))

    whole, shown = with_client(served, ask)
    kinds = [event.type for event in shown]
    begin = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    ends = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert kinds[:4] == begin
    assert kinds[-4:] == [*ends, f"response.{whole.status}"]
    assert set(kinds[4:-4]) <= {"response.output_text.delta"}
    assert [event.sequence_number for event in shown] == list(range(len(shown)))
    assert "".join(event.delta for event in shown[4:-4]) == shown[-4].text == whole.output_text
    last = shown[-1].response
    assert last.output_text == whole.output_text
    assert last.usage.output_tokens == whole.usage.output_tokens
    assert shown[0].response.id == last.id
    assert {event.item_id for event in shown[3:-2]} == {last.output[0].id}


def test_the_client_s_own_helper_follows_a_stream(served: Served) -> None:
    async def ask(client: Any) -> tuple[str, str]:
        async with client.responses.stream(**SENT, max_output_tokens=30, extra_body={"stop": "\n"}) as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            return "".join(texts), (await stream.get_final_response()).output_text

    output, final = with_client(served, ask)
    assert output == final


def test_a_fault_during_a_stream_reaches_the_client(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = served.engine.engine
    step, num_steps = engine.decoder.step, 0

    def failing_step() -> object:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 3:
            engine.decoder.running[0].fail(ZeroDivisionError())
        return step()

    monkeypatch.setattr(engine.decoder, "step", failing_step)

    async def ask(client: Any) -> None:
        await events(await client.responses.create(**SENT, stream=True))

    with pytest.raises(openai.APIError, match="failed to answer"):
        with_client(served, ask)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_what_is_no_json_number_is_refused(served: Served, value: str) -> None:
    body = json.dumps({"model": "demo", "input": "hi", "text": {"format": {"type": "json_object", "x": 0}}})
    headers = {"Content-Type": "application/json"}
    response = served.request("POST", "/v1/responses", content=body.replace(": 0", f": {value}"), headers=headers)
    assert_refused(response, 400, "is not JSON")


def test_halves_of_characters_in_a_form_are_shown_as_they_came(served: Served) -> None:
    form = {"type": "json_schema", "name": "\ud800", "schema": {"type": "object"}, "strict": True}
    fields = {"model": "demo", "input": "hi", "max_output_tokens": 16, "text": {"format": form}}
    headers = {"Content-Type": "application/json"}
    response = served.request("POST", "/v1/responses", content=json.dumps(fields), headers=headers)
    assert response.status_code == 200
    assert response.json()["text"]["format"] == form


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": None}, "'input' is missing, but must be a text or a list of messages,"),
        ({"input": ["a"]}, "input[0]"),
        (
            {"input": [{"type": "function_call_output", "output": "1"}]},
            "'input[0].call_id' is missing, but must be a text.",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "a", "output": 1}]},
            "'input[0].output' is 1, but must be a text",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "b"}]},
            "'input[0].arguments' is missing, but must be a text.",
        ),
        ({"input": [{"type": ["function_call"]}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}]},
            "'input[0].content[0].type' is 'input_file', but must be one of",
        ),
        ({"input": [{"role": [], "content": "a"}]}, "input[0]"),
        ({"instructions": ["a"]}, "'instructions' is ['a'], but must be a text."),
        (
            {"text": {"format": {"type": "xml"}}},
            "'text.format.type' is 'xml', but must be one of 'text', 'json_object', 'json_schema'.",
        ),
        (
            {"text": {"format": {"type": "json_schema", "schema": 3}}},
            "'text.format.schema' is 3, but must be a JSON schema, an object.",
        ),
        ({"response_format": {"type": "text"}}, "'response_format' is {'type': 'text'}, which is not supported"),
        ({"n": 2}, "'n' is 2, which is not supported"),
        ({"top_logprobs": 3}, "'top_logprobs' is 3, which is not supported"),
        ({"background": True}, "'background' is true, which is not supported"),
        ({"max_output_tokens": 0}, "'max_output_tokens' is 0, but must be"),
        ({"temperature": -1}, "'temperature' is -1"),
        ({"messages": []}, "'messages' is [], which is not supported"),
    ],
)
def test_what_it_does_not_do_is_refused(served: Served, fields: dict[str, object], words: str) -> None:
    assert_refused(served.post("/v1/responses", SENT | fields), 400, words)


def test_what_asks_for_nothing_special_is_let_be(served: Served) -> None:
    fields = {"store": False, "tools": [], "tool_choice": "auto", "truncation": "disabled", "metadata": {"a": "b"}}
    response = served.post("/v1/responses", {**SENT, **fields, "text": {"format": {"type": "text"}}, "stream": False})
    assert response.status_code == 200, response.text


def test_an_answer_in_a_form_is_shown_with_it(served: Served) -> None:
    size = {"type": "object", "properties": {"size": {"enum": [3, 4]}}, "required": ["size"]}
    schema = size | {"additionalProperties": False}
    form = {"type": "json_schema", "name": "entry", "schema": schema, "strict": True}
    response = served.post("/v1/responses", {**SENT, "text": {"format": form}}).json()
    assert json.loads(response["output"][0]["content"][0]["text"])["size"] in (3, 4)
    assert response["text"] == {"format": form}


def test_embeddings_are_refused_in_one_sentence(served: Served) -> None:
    async def ask(client: Any) -> None:
        await client.embeddings.create(model="demo", input="tar")

    with pytest.raises(openai.BadRequestError, match="makes no embeddings") as caught:
        with_client(served, ask)
    assert caught.value.code == "unsupported_endpoint"


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"]}
SCHEMA["additionalProperties"] = False
WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
TIME: dict[str, Any] = {"type": "function", "name": "time", "description": "The time."}
WITH_TOOLS = {"model": "demo", "input": "What is the weather?", "tools": [WEATHER, TIME], "max_output_tokens": 300}
CALLED = WITH_TOOLS | {"tool_choice": {"type": "function", "name": "weather"}}


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
    sent = WITH_TOOLS | {"tool_choice": "required", "parallel_tool_calls": False, "extra_body": {"seed": 5}}

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
            "'tools[0].name' is missing, but must be",
        ),
        (
            {"tools": [{"type": "function", "name": "a", "parameters": 1}]},
            "'tools[0].parameters' is 1, but must be a JSON schema, an object.",
        ),
        ({"tools": [1]}, "'tools[0]' is 1, but must be an object with 'type' and 'name'"),
        ({"tools": [TIME, TIME]}, "has the name 'time' twice"),
        ({"tools": [], "tool_choice": "required"}, "but there are no 'tools': give some"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "time"}}},
            "'tool_choice.name' is missing, but must be a text.",
        ),
        (
            {"tool_choice": {"type": "function", "name": ["time"]}},
            "'tool_choice.name' is ['time'], but must be a text.",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "'tool_choice.type' is 'allowed_tools', but must be one of 'function', 'custom'.",
        ),
    ],
)
def test_what_is_no_function_is_refused(served: Served, fields: dict[str, object], words: str) -> None:
    assert_refused(served.post("/v1/responses", WITH_TOOLS | fields), 400, words)
