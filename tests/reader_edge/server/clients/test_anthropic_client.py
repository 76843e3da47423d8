"""Anthropic's own client over real sockets: whole answers and streams, tools, counts, models and errors."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.reader_edge.server.anthropic_requests import WEATHER
from tests.reader_edge.server.clients.test_client_types import check, events
from tests.reader_edge.server.http.test_sockets import KEY, MAX_SECONDS, QUESTION, ServerProcess

anthropic = pytest.importorskip("anthropic", reason="its client is not installed: pip install 'reader-edge[dev]'")
pydantic = pytest.importorskip("pydantic")
pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

GREEDY = {"temperature": 0}  # for which this client has no word any more
ASK: Any = {"model": "demo", "messages": QUESTION, "max_tokens": 24, "extra_body": GREEDY}
CALL = ASK | {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 200}


def client_of(server: ServerProcess, **key: str) -> Any:
    url = server.url.removesuffix("/v1")
    return anthropic.Anthropic(base_url=url, max_retries=0, timeout=MAX_SECONDS, **key)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server, api_key=KEY) as client:
        yield client


def test_whole_and_streamed_answers_are_the_same(client: Any) -> None:
    whole = client.messages.create(**ASK)
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 24)
    with client.messages.stream(**ASK) as stream:
        assert len(list(stream.text_stream)) > 2
        streamed = stream.get_final_message()
    assert [each.to_dict() for each in streamed.content] == [each.to_dict() for each in whole.content]
    assert streamed.usage.cache_read_input_tokens > 0
    assert client.messages.create(**ASK, stop_sequences=["e"]).stop_sequence == "e"


def test_a_tool_is_called_and_its_result_taken(client: Any) -> None:
    whole = client.messages.create(**CALL)
    (call,) = whole.content
    assert (whole.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather")
    assert call.input["place"] in ("Paris", "Oslo")
    with client.messages.stream(**CALL) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        assert stream.get_final_message().content[0].input == call.input
    assert len(pieces) > 1
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Rain."}]}
    turns = [*QUESTION, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**ASK | {"messages": turns}, tools=[WEATHER]).content[0].text


@pytest.mark.parametrize("fields", [{}, {"tools": CALL["tools"], "tool_choice": CALL["tool_choice"]}])
def test_answers_and_events_are_of_the_client_s_types(server: ServerProcess, fields: dict[str, Any]) -> None:
    def post(**more: object) -> httpx.Response:
        body = {**ASK, **GREEDY, "max_tokens": 200, **fields, **more}
        del body["extra_body"]
        return httpx.post(f"{server.url}/messages", json=body, headers={"x-api-key": KEY}, timeout=MAX_SECONDS)

    message = check(anthropic.types.Message, post().json())
    output = [event for event in events(post(stream=True)) if event != {"type": "ping"}]
    shown = [check(anthropic.types.RawMessageStreamEvent, event) for event in output]
    assert shown[0].message.role == message.role
    assert shown[-2].delta.stop_reason == message.stop_reason
    refusal = check(anthropic.types.ErrorResponse, post(model="other").json())
    assert refusal.error.type == "not_found_error"


def test_an_answer_is_parsed_as_of_the_requested_model(client: Any) -> None:
    class Size(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        width: int = pydantic.Field(ge=0, le=99)

    message = client.messages.parse(**ASK | {"max_tokens": 200}, output_format=Size)
    assert isinstance(message.parsed_output, Size)


def test_tokens_are_counted_and_models_are_listed(client: Any) -> None:
    usage = client.messages.create(**ASK).usage
    counted = client.messages.count_tokens(model="demo", messages=QUESTION)
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    (model,) = client.models.list()
    assert (model.id, model.created_at.year > 2000) == ("demo", True)
    assert client.models.retrieve("demo").id == "demo"


def test_fields_of_betas_are_taken(client: Any) -> None:
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    betas = ["context-management-2025-06-27"]
    message = client.beta.messages.create(**ASK, betas=betas, context_management=edits)
    assert message.content[0].text == client.messages.create(**ASK).content[0].text


def test_refusals_are_the_client_s_errors(client: Any, server: ServerProcess) -> None:
    with pytest.raises(anthropic.NotFoundError, match="no model 'other'") as unknown:
        client.messages.create(**ASK | {"model": "other"})
    assert unknown.value.request_id.startswith("req_")
    assert unknown.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="'top_p' is 7"):
        client.messages.create(**ASK | {"extra_body": {"top_p": 7}})
    with client_of(server, api_key="wrong") as other, pytest.raises(anthropic.AuthenticationError):
        other.messages.create(**ASK)
    with client_of(server, auth_token=KEY) as other:
        assert other.messages.create(**ASK).content
