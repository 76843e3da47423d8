"""A stream whose first word takes long begins all the same, and says how far it is."""

import asyncio
import json
import threading
from typing import Any

import httpx2
import openai
import pytest

from reader_edge.server import event_stream
from reader_edge.server.completion import SEED_HEADER
from reader_edge.server.settings import LEFT_OUT_HEADER
from tests.reader_edge.server.conftest import LIMIT_S, Served

PROMPT = "# tar\n\nAn archive is a file that holds other files. " * 40  # of several chunks
TEXT = {"model": "demo", "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "stream": True}
MESSAGES = [{"role": "user", "content": PROMPT}]
LENIENT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "not": {}}}}


@pytest.fixture
def slow(served: Served, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The server, whose first pass waits until this is set, or for a few heartbeats."""
    is_let = threading.Event()
    step = served.engine.engine.decoder.step

    def slow_step() -> object:
        is_let.wait(0.3)
        is_let.set()
        return step()

    monkeypatch.setattr(event_stream, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(served.engine.engine.decoder, "step", slow_step)
    return is_let


@pytest.mark.usefixtures("slow")
def test_comments_say_how_far_a_prompt_is_read(served: Served) -> None:
    response = served.post("/v1/completions", TEXT)
    assert response.status_code == 200
    first, *events = response.text.rstrip("\n").split("\n\n")
    progress = json.loads(first.removeprefix(": "))["prompt_progress"]
    assert 0 <= progress["cache"] <= progress["processed"] < progress["total"]
    shown = [each for each in events if not each.startswith(":")]
    assert shown[-1] == "data: [DONE]"
    text = "".join(json.loads(each.removeprefix("data: "))["choices"][0]["text"] for each in shown[:-1])
    assert text == served.complete(prompt=PROMPT, max_tokens=4)["choices"][0]["text"]


def test_a_first_word_that_comes_soon_comes_first(served: Served) -> None:
    assert served.post("/v1/completions", TEXT).text.startswith("data: ")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_lines_say_it_as_parts_that_are_empty(served: Served, path: str) -> None:
    prompt = {"messages": MESSAGES} if path == "/api/chat" else {"prompt": PROMPT, "raw": True}
    body = {"model": "demo", "options": {"num_predict": 4, "temperature": 0}, **prompt}
    lines = [json.loads(line) for line in served.post(path, body).text.splitlines()]
    assert (lines[0]["model"], lines[0]["done"]) == ("demo", False)
    assert lines[0]["prompt_progress"]["total"] > 0
    texts = [each["message"]["content"] if path == "/api/chat" else each["response"] for each in lines]
    assert texts[0] == ""
    assert [each["done"] for each in lines].count(True) == 1
    whole = served.post(path, body | {"stream": False}).json()
    assert "".join(texts) == (whole["message"]["content"] if path == "/api/chat" else whole["response"])


@pytest.mark.usefixtures("slow")
def test_openais_client_passes_over_them(served: Served) -> None:
    async def ask() -> str:
        transport = httpx2.ASGITransport(served.app)
        http = openai.DefaultAsyncHttpxClient(transport=transport)
        async with openai.AsyncOpenAI(base_url="http://localhost:8000/v1", api_key="none", http_client=http) as client:
            pieces = await client.completions.create(
                model="demo", prompt=PROMPT, max_tokens=4, temperature=0, stream=True
            )
            return "".join([each.choices[0].text async for each in pieces])

    text = asyncio.run(asyncio.wait_for(ask(), LIMIT_S))
    assert text == served.complete(prompt=PROMPT, max_tokens=4)["choices"][0]["text"]


@pytest.mark.usefixtures("slow")
def test_headers_are_those_of_a_stream_that_comes_soon(served: Served) -> None:
    body = {"model": "demo", "messages": MESSAGES, "stream": True, "max_tokens": 4, "response_format": LENIENT}
    response = served.post("/v1/chat/completions", body | {"temperature": 1.0, "seed": 7})
    assert response.text.startswith(": ")
    assert response.headers[SEED_HEADER] == "7"
    assert json.loads(response.headers[LEFT_OUT_HEADER])


@pytest.mark.usefixtures("slow")
def test_what_is_refused_keeps_its_status(served: Served) -> None:
    assert served.post("/v1/completions", TEXT | {"prompt": "a " * 5000}).status_code == 400


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/api/generate"])
def test_an_error_behind_them_is_an_event(
    served: Served, slow: threading.Event, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = served.engine.engine.decoder

    def fail() -> object:
        slow.wait(0.3)
        raise RuntimeError("a fault")

    monkeypatch.setattr(decoder, "step", fail)
    body = TEXT if path != "/v1/responses" else {"model": "demo", "input": PROMPT, "stream": True}
    body = {"model": "demo", "prompt": PROMPT, "raw": True} if path == "/api/generate" else body
    response = served.post(path, body)
    assert response.status_code == 200
    last = response.text.strip().splitlines()[-1].removeprefix("data: ")
    error = json.loads(last)["error"]
    assert "its log says why" in (error if path == "/api/generate" else error["message"])


@pytest.mark.usefixtures("slow")
def test_a_client_that_leaves_meanwhile_ends_the_answer(served: Served) -> None:
    async def leave() -> None:
        scope = {
            **{"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "scheme": "http"},
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }
        sent: list[bytes] = []
        has_beaten = asyncio.Event()
        bodies = [{"type": "http.request", "body": json.dumps(TEXT).encode(), "more_body": False}]

        async def receive() -> Any:
            if bodies:
                return bodies.pop()
            await has_beaten.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))
            if sent[-1]:
                has_beaten.set()

        await served.app(scope, receive, send)
        assert b"".join(sent).startswith(b": ")

    asyncio.run(asyncio.wait_for(leave(), LIMIT_S))
    served.wait_until_idle()
