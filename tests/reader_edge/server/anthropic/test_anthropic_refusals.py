"""Anthropic's interface: what it refuses, in Anthropic's shape, each in one sentence; its clients' keys and models."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

from reader_edge.server.anthropic.endpoints import MessageStream
from reader_edge.server.api_error import ApiError
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from tests.reader_edge.server.anthropic_requests import BODY, COUNT, PATH, USER, assert_refused
from tests.reader_edge.server.conftest import LIMIT_S, Served

KEY = "0123456789abcdef"
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"model": "claude-x"}, 404, "not_found_error", "There is no model 'claude-x' here: ask for 'demo'."),
        ({"model": ""}, 400, "invalid_request_error", "'model' is missing"),
        ({"messages": []}, 400, "invalid_request_error", "at least one"),
        ({"messages": [USER | {"content": []}]}, 400, "invalid_request_error", "The conversation is empty"),
        ({"messages": [USER] * 10_001}, 400, "invalid_request_error", "at most 10000"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "'max_tokens' is 0"),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "not supported here"),
        ({"thinking": {"type": "enabled"}}, 400, "invalid_request_error", "'thinking.budget_tokens' is missing"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "there are no 'tools'"),
        ({"thread": {"id": "a"}}, 400, "invalid_request_error", "not supported here"),
    ],
)
def test_a_refusal_is_typed_and_one_sentence(
    served: Served, fields: dict[str, Any], status: int, kind: str, words: str
) -> None:
    for path in (PATH, COUNT):
        assert_refused(served.post(path, BODY | fields), status, words, kind)


def test_a_prompt_that_is_too_long_is_refused_in_words_by_which_claude_code_compacts(served: Served) -> None:
    context = served.engine.engine.package.manifest.max_context
    for text in ("tar " * context, "tar" * 10_000_000):
        response = served.post(PATH, BODY | {"messages": [USER | {"content": text[:4_000_000]}]})
        found = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", response.json()["error"]["message"])
        assert found is not None
        assert int(found[1]) > int(found[2]) == context


def test_refusals_before_an_endpoint_are_too(async_engine: AsyncEngine) -> None:
    served = Served(async_engine, ServerSettings("demo", api_keys=(KEY.encode(),), max_body_bytes=1000))
    assert_refused(served.post(PATH, BODY), 401, "'X-Api-Key: KEY'", "authentication_error")
    assert_refused(served.get("/v1/models", headers=VERSION), 401, "'X-Api-Key: KEY'", "authentication_error")
    headers = {"x-api-key": KEY}
    assert_refused(served.get(PATH, headers=headers), 405, "There is no GET /v1/messages here.")
    assert_refused(served.post(f"{PATH}/batches", BODY, headers=headers), 404, "There is no POST", "not_found_error")
    assert_refused(served.get("/v1/files", headers=headers | VERSION), 404, "There is no GET", "not_found_error")
    large = BODY | {"system": "a" * 1000}
    assert_refused(served.post(PATH, large, headers=headers), 413, "1000 bytes", "request_too_large")
    elsewhere = Served(async_engine, ServerSettings("demo"), host="made.up")
    assert_refused(elsewhere.post(PATH, BODY), 403, "'made.up", "permission_error")


def test_a_key_may_come_either_way(async_engine: AsyncEngine) -> None:
    served = Served(async_engine, ServerSettings("demo", api_keys=(KEY.encode(),)))
    wrong = "x" * len(KEY)
    for headers, status in (
        ({"x-api-key": KEY}, 200),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"x-api-key": KEY, "Authorization": f"Bearer {wrong}"}, 200),
        ({"x-api-key": wrong, "Authorization": f"Bearer {KEY}"}, 200),
        ({"x-api-key": wrong}, 401),
        ({"x-api-key": ""}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
    ):
        assert served.post(COUNT, {"model": "demo", "messages": [USER]}, headers=headers).status_code == status, headers


def test_an_error_in_a_stream_is_its_last_event(served: Served) -> None:
    async def fails() -> AsyncGenerator[dict[str, Any], None]:
        yield {"type": "message_start"}
        yield {"type": "ping"}
        raise ApiError(504, "It took too long.", code="timeout")

    sent: list[Any] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.sleep(LIMIT_S)
        return {"type": "http.disconnect"}

    async def stream() -> None:
        events = fails()
        await MessageStream(asyncio.ensure_future(anext(events)), events, {})({"type": "http"}, receive, send)

    asyncio.run(stream())
    *_, last = b"".join(message.get("body", b"") for message in sent).decode().strip().split("\n\n")
    name, data = last.split("\n")
    error = json.loads(data.removeprefix("data: "))
    assert (name, error["type"]) == ("event: error", "error")
    assert error["error"] == {"type": "timeout_error", "message": "It took too long."}


def test_models_are_listed_as_anthropic_s_clients_read_them(served: Served) -> None:
    page = served.get("/v1/models?limit=1000", headers=VERSION).json()
    (model,) = page["data"]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("demo", "demo", False)
    assert (model["type"], model["id"], model["display_name"]) == ("model", "demo", "demo")
    assert model["max_input_tokens"] == served.engine.engine.package.manifest.max_context
    assert served.get("/v1/models/demo", headers=VERSION).json() == model
    assert_refused(served.get("/v1/models/other", headers=VERSION), 404, "no model 'other'", "not_found_error")
    assert served.get("/v1/models").json()["object"] == "list"
