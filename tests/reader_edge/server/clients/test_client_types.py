"""Every answer and event, held strictly to the types of the official clients, with nothing that they do not know."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from reader_edge.server.api_error import ApiError
from reader_edge.server.event_stream import NamedEventStream
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig
from tests.reader_edge.package_copy import PackageCopy
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.ollama_requests import WEATHER

openai = pytest.importorskip("openai", reason="the official client is not installed: pip install 'reader-edge[dev]'")
ollama = pytest.importorskip("ollama", reason="Ollama's client is not installed: pip install 'reader-edge[dev]'")
pydantic = pytest.importorskip("pydantic")
pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

# Fields beyond the types, by their class.
OURS = {
    "Model.context_length",
    "Model.max_model_len",
    "Model.status",
    "ChatCompletionMessage.reasoning_content",
    "ChoiceDelta.reasoning_content",
    "Choice.draft_sources",
    "CompletionChoice.draft_sources",
    "OutputTokensDetails.accepted_prediction_tokens",
    "OutputTokensDetails.rejected_prediction_tokens",
    "ResponseErrorEvent.error",  # which the client looks for
    "ResponseFunctionCallArgumentsDoneEvent.name",  # which older clients look for
    *(f"Response.{name}" for name in ("store", "frequency_penalty", "presence_penalty")),  # as OpenAI tells them, too
}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "assistant:{% if enable_thinking %}<think>\n{% elif false %}</think>{% endif %}{# tools #}"
)
USER = {"role": "user", "content": "What is tar?"}
_FUNCTION: Any = WEATHER["function"]
TOOL = {"type": "function", "function": _FUNCTION}
FLAT_TOOL: dict[str, Any] = {"type": "function", **_FUNCTION}
SCHEMA = {"type": "object", "properties": {"size": {"enum": ["S", "L"]}}, "required": ["size"]}
FORM = {"type": "json_schema", "json_schema": {"name": "size", "schema": SCHEMA}}
SOURCES = {"include_usage": True, "include_sources": True}

CHAT: dict[str, Any] = {"model": "demo", "messages": [USER], "temperature": 0, "max_tokens": 12}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "two choices": {"n": 2, "temperature": 1, "seed": 1},
    "thoughts": {"enable_thinking": True},
    "tools": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200},
    "a tool with logprobs": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    | {"max_tokens": 200, "logprobs": True},
    "a cut call": {"tools": [TOOL], "tool_choice": "required"},
    "a form": {"response_format": FORM, "max_tokens": 60},
    "a history": {
        "messages": [
            *({"role": role, "content": "Be short."} for role in ("system", "developer", "user")),
            {"role": "assistant", "content": None, "reasoning_content": "Hm."},
            {"role": "assistant", "content": None, "refusal": "No."},
            USER,
        ]
    },
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"logprobs": 2},
    "echo": {"logprobs": 2, "echo": True},
    "nothing but the prompt": {"echo": True, "max_tokens": 0, "logprobs": 1},
    "two prompts": {"prompt": ["# tar", "# ls"], "n": 2, "temperature": 1, "seed": 1},
    "a stop": {"stop": ["a", "e", "i"]},
}
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "stopped": {"text": {"format": {"type": "json_schema", "name": "size", "schema": SCHEMA}}, "max_output_tokens": 60},
    "thoughts": {"enable_thinking": True, "reasoning": {"effort": "low"}},
    "tools": {"tools": [FLAT_TOOL], "tool_choice": "required", "max_output_tokens": 200},
    "a tool by name": {"tools": [FLAT_TOOL], "tool_choice": {"type": "function", "name": "weather"}}
    | {"max_output_tokens": 200},
    "a cut call": {"tools": [FLAT_TOOL], "tool_choice": "required"},
    "instructions": {
        "instructions": "Be short.",
        "metadata": {"a": "b"},
        "input": [{"role": "developer", "content": "x"}],
    },
}
OLLAMA: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/api/chat", {"messages": [USER]}),
    "chat with logprobs": ("/api/chat", {"messages": [USER], "logprobs": True, "top_logprobs": 2}),
    "chat with thoughts": ("/api/chat", {"messages": [USER], "think": True}),
    "chat with tools": ("/api/chat", {"messages": [USER], "tools": [WEATHER]}),
    "load": ("/api/chat", {"messages": []}),
    "generate": ("/api/generate", {"prompt": "# tar"}),
    "generate with logprobs": ("/api/generate", {"prompt": "# tar", "raw": True, "logprobs": True}),
    "generate with thoughts": ("/api/generate", {"prompt": "What is tar?", "think": True}),
}
REFUSED: dict[str, list[Any]] = {
    "/v1/chat/completions": [CHAT | {"messages": []}, CHAT | {"temperature": -1}, CHAT | {"model": "other"}],
    "/v1/completions": [{"model": "demo"}, {"model": "demo", "prompt": "a", "n": 3, "best_of": 2}],
    "/v1/responses": [{"model": "demo", "input": []}, {"model": "demo", "input": "a", "background": True}],
    "/v1/embeddings": [{"model": "demo", "input": "a"}],
    "/v1/unknown": [{}],
}


@pytest.fixture(scope="module")
def engine_that_thinks(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("typed") / "package")
    package.write_file("chat_template.jinja", TEMPLATE.encode())
    return Engine.load(package.folder, EngineConfig(is_calibrated=False))


@pytest.fixture
def served(engine_that_thinks: Engine) -> Iterator[Served]:
    engine = AsyncEngine(engine_that_thinks)
    yield Served(engine, ServerSettings("demo", max_tokens=500))
    asyncio.run(engine.close(cancels=True))


@cache
def event_types() -> Mapping[str, Any]:
    """OpenAI's classes of events of a response, by the kind that each tells."""
    (union, *_) = get_args(openai.types.responses.ResponseStreamEvent)
    return {get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(union)}


def check(kind: Any, shown: Any) -> Any:
    """A value as it is sent, read by a client's type, strictly. What the type does not know must be ours by name."""
    value = pydantic.TypeAdapter(kind).validate_json(json.dumps(shown), strict=True)
    assert further(value) <= OURS
    return value


def further(value: Any) -> set[str]:
    """Fields that the types do not know, in a value and all that it holds."""
    if isinstance(value, list | tuple):
        return {name for each in value for name in further(each)}
    if not isinstance(value, pydantic.BaseModel):
        return set()
    own = {f"{type(value).__name__}.{name}" for name in value.model_extra or ()}
    return own.union(*(further(getattr(value, name)) for name in type(value).model_fields))


def events(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    shown = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in shown if line != "[DONE]"]


def without_nulls(shown: Any) -> Any:
    """A completion without what OpenAI tells as null, too, though its types have no null there.

    That is the reason of an end that has not come, and the log-probability of a prompt's first token.
    """
    for choice in shown["choices"]:
        logprobs = choice["logprobs"] or {"token_logprobs": [], "top_logprobs": []}
        assert None not in logprobs["token_logprobs"][1:]
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        logprobs["token_logprobs"] = [each or 0.0 for each in logprobs["token_logprobs"]]
        logprobs["top_logprobs"] = [each or {} for each in logprobs["top_logprobs"]]
    return shown


def whole(served: Served, path: str, body: Any) -> Any:
    response = served.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("name", CHATS)
def test_chats_are_of_the_client_s_types(served: Served, name: str) -> None:
    body = CHAT | CHATS[name]
    answer = check(openai.types.chat.ChatCompletion, whole(served, "/v1/chat/completions", body))
    shown = events(served.post("/v1/chat/completions", body | {"stream": True, "stream_options": SOURCES}))
    chunks = [check(openai.types.chat.ChatCompletionChunk, event) for event in shown]
    assert len(chunks) > 2
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    if name == "thoughts":
        assert answer.choices[0].message.reasoning_content
    assert bool(answer.choices[0].message.tool_calls) == ("tools" in body)


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions_are_of_the_client_s_type(served: Served, name: str) -> None:
    body = {"model": "demo", "prompt": "# tar", "max_tokens": 12, "temperature": 0} | COMPLETIONS[name]
    answer = whole(served, "/v1/completions", body)
    assert all(choice["finish_reason"] in ("stop", "length") for choice in answer["choices"])
    check(openai.types.Completion, without_nulls(answer))
    shown = events(served.post("/v1/completions", body | {"stream": True, "stream_options": SOURCES}))
    ends = [choice["finish_reason"] for event in shown for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(ends) == sorted(choice["finish_reason"] for choice in answer["choices"])
    assert [check(openai.types.Completion, without_nulls(event)) for event in shown]


@pytest.mark.parametrize("name", RESPONSES)
def test_responses_and_their_events_are_of_the_client_s_types(served: Served, name: str) -> None:
    body = {"model": "demo", "input": "What is tar?", "max_output_tokens": 12, "temperature": 0} | RESPONSES[name]
    response = check(openai.types.responses.Response, whole(served, "/v1/responses", body))
    shown = [
        check(event_types()[event["type"]], event)
        for event in events(served.post("/v1/responses", body | {"stream": True}))
    ]
    assert [event.sequence_number for event in shown] == list(range(len(shown)))
    last = shown[-1].response
    assert (last.status, last.usage.output_tokens) == (response.status, response.usage.output_tokens)
    assert [item.type for item in last.output] == [item.type for item in response.output]


def test_an_error_within_a_stream_is_an_event_of_the_client_s_type() -> None:
    async def fails() -> AsyncGenerator[dict[str, Any], None]:
        yield {"type": "response.created", "sequence_number": 0}
        yield {"type": "response.in_progress", "sequence_number": 1}
        raise ApiError(504, "It took too long.", code="timeout")

    async def answer(request: Any) -> NamedEventStream:
        all_events = fails()
        return NamedEventStream(asyncio.ensure_future(anext(all_events)), all_events, {})

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(Starlette(routes=[Route("/", answer)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/")

    error = check(openai.types.responses.ResponseErrorEvent, events(asyncio.run(ask()))[-1])
    assert (error.message, error.code, error.sequence_number) == ("It took too long.", "timeout", 2)
    check(openai.types.shared.ErrorObject, error.error)


@pytest.mark.parametrize("path", REFUSED)
def test_refusals_are_of_the_client_s_type(served: Served, path: str) -> None:
    for body in REFUSED[path]:
        response = served.post(path, body)
        assert response.status_code in (400, 404)
        assert set(response.json()) == {"error"}
        assert check(openai.types.shared.ErrorObject, response.json()["error"]).message.endswith(".")


def test_models_are_of_the_client_s_type(served: Served) -> None:
    listed = served.get("/v1/models").json()
    assert (set(listed), listed["object"]) == ({"object", "data"}, "list")
    for shown in (*listed["data"], served.get("/v1/models/demo").json()):
        assert check(openai.types.Model, shown).id == "demo"


@pytest.mark.parametrize("name", OLLAMA)
def test_ollama_s_answers_are_of_its_client_s_types(served: Served, name: str) -> None:
    path, fields = OLLAMA[name]
    kind = ollama.ChatResponse if path == "/api/chat" else ollama.GenerateResponse
    body = {"model": "demo", "options": {"temperature": 0, "num_predict": 12}} | fields
    answer = check(kind, whole(served, path, body | {"stream": False}))
    response = served.post(path, body)
    shown = [check(kind, json.loads(line)) for line in response.text.splitlines()]
    assert (shown[-1].done, shown[-1].done_reason) == (True, answer.done_reason)


def test_ollama_s_models_are_of_its_client_s_types(served: Served) -> None:
    for path, kind in (("/api/tags", ollama.ListResponse), ("/api/ps", ollama.ProcessResponse)):
        assert len(check(kind, served.get(path).json()).models) == 1
    shown = check(ollama.ShowResponse, served.post("/api/show", {"model": "demo"}).json())
    assert "tools" in shown.capabilities
    assert check(ollama.ProgressResponse, served.post("/api/pull", {"model": "demo"}).json()).status == "success"
