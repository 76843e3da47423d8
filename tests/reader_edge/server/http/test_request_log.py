"""The server's log: a line for each request, with all that is known of it, and nothing that stays between two."""

import asyncio
import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import httpx
import pytest
import uvicorn

from reader_edge.server import listening, request_log
from reader_edge.server.endpoints import ANTHROPIC_ENDPOINTS, OLLAMA_ENDPOINTS
from reader_edge.server.listening import Connection
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from tests.reader_edge.server.conftest import LIMIT_S, RequestLines, Served
from tests.reader_edge.server.contract_cases import ANTHROPIC_BODIES, OLLAMA_BODIES, Case, cases_of_text

KEY = "a-key-that-nobody-guesses"
SECRET = "the-word-of-a-prompt"  # noqa: S105
CHAT = [{"role": "user", "content": SECRET}]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> RequestLines:
    return RequestLines(caplog)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "# tar", "max_tokens": 12, "temperature": 0}),
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 12, "temperature": 0}),
        ("/v1/responses", {"input": SECRET, "max_output_tokens": 12, "temperature": 0}),
        ("/api/generate", {"prompt": "# tar", "options": {"num_predict": 12, "temperature": 0}}),
        ("/api/chat", {"messages": CHAT, "options": {"num_predict": 12, "temperature": 0}}),
    ],
)
def test_an_answer_is_a_line_with_its_tokens_and_its_time(
    served: Served, lines: RequestLines, path: str, fields: dict[str, object], is_streamed: bool
) -> None:
    start = time.perf_counter()
    response = served.post(path, {"model": "demo", "stream": is_streamed, **fields})
    assert response.status_code == 200
    line = lines.only()
    assert 0 < line.pop("seconds") < time.perf_counter() - start
    assert 0 <= line.pop("accepted_tokens") <= 12
    assert line.pop("prompt_tokens") > 0
    assert 0 < line.pop("completion_tokens") <= 12
    assert line == {"method": "POST", "path": path, "status": 200, "model": "demo"}
    assert lines.records[0].levelno == logging.INFO


def test_its_counts_are_those_of_usage(served: Served, lines: RequestLines) -> None:
    usage = served.complete(prompt=["# tar", "tar\ntar\ntar\ntar\ntar"], n=2, max_tokens=40)["usage"]
    line = lines.only()
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == usage["completion_tokens"] == 160
    assert line["accepted_tokens"] == usage["completion_tokens_details"]["accepted_prediction_tokens"] > 0


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/api/tags", "/", "/openapi.json"])
def test_what_asks_no_model_is_a_line_too(served: Served, lines: RequestLines, path: str) -> None:
    served.get(path)
    line = lines.only()
    assert line.pop("seconds") >= 0
    assert line == {"method": "GET", "path": path, "status": 200}


BODY = {"model": "demo", "prompt": "# tar", "max_tokens": 4}


@pytest.mark.parametrize(
    ("how", "status", "model", "output"),
    [
        ({"path": "/v1/nothing"}, 404, None, "There is no POST /v1/nothing here."),
        ({"path": "/health"}, 405, None, "There is no POST /health here."),
        ({"path": "/v1/embeddings", "json": {"model": "demo", "input": "a"}}, 400, "demo", "makes no embeddings"),
        ({"path": "/api/create"}, 501, None, "changes nothing of it"),
        ({"path": "/api/show", "json": {"name": "other"}}, 404, "other", "model 'other' not found"),
        ({"headers": {"Content-Type": "text/plain"}, "content": "{}"}, 415, None, "The body must be JSON"),
        ({"headers": {"Host": "evil.example"}, "json": BODY}, 403, None, "answers to no host 'evil.example'"),
        ({"headers": {"X-Long": "a" * 17_000}, "json": BODY}, 431, None, "The headers have more than"),
        ({"headers": {"Content-Type": "application/json"}, "content": "{"}, 400, None, "The body is not JSON"),
        ({"json": BODY | {"model": "other"}}, 404, "other", "There is no model 'other' here: ask for 'demo'."),
        ({"json": BODY | {"temperature": -1}}, 400, "demo", "'temperature' is -1, but must be"),
        ({"json": BODY | {"prompt": "a " * 9000}}, 400, "demo", "shorten the prompt"),
        ({"json": BODY | {"prompt": "a" * (4 << 20)}}, 413, None, "The body has more than"),
    ],
)
def test_every_refusal_is_a_line_with_its_sentence(
    served: Served, lines: RequestLines, how: dict[str, Any], status: int, model: str | None, output: str
) -> None:
    response = served.request("POST", **({"path": "/v1/completions"} | how))
    assert response.status_code == status
    line = lines.only()
    assert (line["method"], line["status"], line.get("model")) == ("POST", status, model)
    assert output in line["error"]
    sentence = response.json()["error"]
    assert line["error"] == (sentence if isinstance(sentence, str) else sentence["message"])
    assert lines.records[0].levelno == logging.WARNING
    assert "prompt" not in line


def test_no_line_has_a_key_right_or_wrong(async_engine: AsyncEngine, caplog: pytest.LogCaptureFixture) -> None:
    lines = RequestLines(caplog)
    caplog.set_level(logging.DEBUG)
    served = Served(async_engine, ServerSettings("demo", (KEY.encode(),), logs_prompts=True))
    for key, status in ((KEY, 200), ("another-key-of-somebody", 401)):
        headers = {"Authorization": f"Bearer {key}", "X-Api-Key": key}
        response = served.request("POST", f"/v1/completions?api_key={key}", json=BODY, headers=headers)
        assert response.status_code == status
        assert lines.fields[-1]["status"] == status
    own = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert not any(key in record.getMessage() for record in own for key in (KEY, "another-key"))
    assert "The API key is missing or wrong" in lines.fields[-1]["error"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": SECRET}),
        ("/v1/completions", {"prompt": {"text": SECRET}}),
        ("/v1/completions", {"prompt": [SECRET, {"text": f'{SECRET} it\'s "quoted"'}]}),
        ("/v1/completions", {"prompt": "a", "suffix": SECRET}),
        ("/v1/chat/completions", {"messages": CHAT}),
        ("/v1/chat/completions", {"messages": SECRET}),
        ("/v1/chat/completions", {"messages": [SECRET]}),
        ("/v1/chat/completions", {"messages": [{"role": SECRET, "content": "a"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": [SECRET]}]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": {"a": [SECRET] * 50}}]}),
        ("/v1/responses", {"input": {"text": SECRET}}),
        ("/api/generate", {"prompt": [SECRET]}),
        ("/api/chat", {"messages": [{"role": "user", "content": [SECRET + "\n" * 200]}]}),
    ],
)
def test_prompts_are_in_no_line_refused_ones_neither_unless_that_is_requested(
    async_engine: AsyncEngine, caplog: pytest.LogCaptureFixture, path: str, fields: dict[str, object]
) -> None:
    lines = RequestLines(caplog)
    for logs_prompts in (False, True):
        served = Served(async_engine, ServerSettings("demo", max_tokens=4, logs_prompts=logs_prompts))
        served.post(path, {"model": "demo", **fields})
        line = lines.fields[-1]
        assert (SECRET in lines.records[-1].getMessage()) == logs_prompts
        assert (SECRET in json.dumps(line)) == logs_prompts
        if logs_prompts:
            assert json.loads(line["prompt"]) == {name: value for name, value in fields.items()}


def test_a_refusal_without_its_values_still_names_the_place_and_the_remedy(served: Served, lines: RequestLines) -> None:
    roles = "one of 'assistant', 'developer', 'system', 'tool', 'user'"
    parts = "a list of parts of type 'text' or 'image_url', at most 10000"
    user, grammar = {"role": "user", "content": "a"}, "The grammar cannot be followed: change or simplify it."
    picture = {"type": "image_url", "image_url": {"url": SECRET}}
    chat, plain = "/v1/chat/completions", "/v1/completions"
    for path, fields, sentence in (
        (
            chat,
            {"messages": [user | {"content": {}}]},
            f"'messages[0].content' is '...', but must be a text, or {parts}.",
        ),
        (chat, {"messages": [user | {"role": SECRET}]}, f"'messages[0].role' is '...', but must be {roles}."),
        (
            chat,
            {"messages": [user | {"content": [picture]}]},
            "'messages[0].content[0].image_url.url' is no data URL, but nothing is fetched from there: give the image "
            "as 'data:image/png;base64,...'.",
        ),
        (plain, {"prompt": "a", "temperature": SECRET}, "'temperature' is '...', but must be a number from 0 to 100."),
        (plain, {"prompt": "a", "guided_regex": f"{SECRET}[plan("}, grammar),
        (plain, {"prompt": "a", "guided_json": {"type": SECRET}}, grammar),
    ):
        assert served.post(path, {"model": "demo", **fields}).status_code == 400
        assert lines.fields[-1]["error"] == sentence


@pytest.mark.long
@pytest.mark.parametrize("text", [f"""it's "{SECRET}' [({{ \\' """, SECRET, f"'){SECRET}(\"", f"{{{SECRET}\n"])
def test_no_text_of_a_client_is_in_the_line_of_a_refusal(
    async_engine: AsyncEngine, lines: RequestLines, text: str
) -> None:
    served = Served(async_engine, ServerSettings("demo", max_tokens=1))  # what is answered all the same is short
    cases = [*cases_of_text(text), *cases_of_text(text, OLLAMA_ENDPOINTS, OLLAMA_BODIES)]
    cases += cases_of_text(text, ANTHROPIC_ENDPOINTS, ANTHROPIC_BODIES)
    schemas = [{"type": text}, {"pattern": f"[{text}"}, {text: {text: text}}, {"$ref": text}, {"required": text}]
    cases += [Case("/v1/completions", "", {"prompt": "a", "guided_json": schema}) for schema in schemas]
    forms = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
    cases += [
        Case("/v1/completions", "", {"prompt": "a", form: value}) for form in forms for value in (text, [text, 3])
    ]
    function = {"name": "a", "parameters": {"type": "object", "properties": {text: {"type": text}}}, "strict": True}
    tools = [[{"type": "function", "function": each}] for each in (function, {"name": text}, {"name": "a", text: 1})]
    messages: list[dict[str, Any]] = [
        {text: 1},
        {"content": text, text: text},
        {"content": [{"type": "text", "text": text, text: text}]},
    ]
    chat = {"messages": CHAT, "tool_choice": "required"}
    cases += [Case("/v1/chat/completions", "", chat | {"tools": each}) for each in tools]
    cases += [Case("/v1/chat/completions", "", {"messages": [{"role": "user"} | each]}) for each in messages]
    num_refused = 0
    for case in cases:
        if case.place.split(".")[0] in ("model", "name"):  # of which the line has a field
            continue
        response = served.post(case.path, {"model": "demo"} | case.body)
        num_refused += response.status_code >= 400
        assert SECRET not in json.dumps(lines.fields[-1]), case
    assert num_refused > len(cases) // 4


def test_long_prompts_paths_and_names_are_cut(async_engine: AsyncEngine, caplog: pytest.LogCaptureFixture) -> None:
    lines = RequestLines(caplog)
    served = Served(async_engine, ServerSettings("demo", logs_prompts=True))
    served.post(f"/v1/{'a' * 1000}", {})
    served.post("/v1/completions", {"model": "m" * 10_000, "prompt": "p" * 100_000})
    path, body = lines.fields
    assert (len(path["path"]), len(body["model"]), len(body["prompt"])) == (203, 103, 10_003)
    assert max(len(each.getMessage()) for each in lines.records) < 12_000


@pytest.mark.parametrize("breaker", ["\n", "\r\n", "\x1b[2J", "\x00", "\x85", "\u2028", '" status=200 "', "\ud800"])
def test_a_client_writes_no_line_of_its_own(served: Served, lines: RequestLines, breaker: str) -> None:
    forged = f"a{breaker}2026-01-01T00:00:00.000Z INFO GET /forged 200"
    served.request("POST", "/v1/" + "".join(f"%{byte:02x}" for byte in forged.encode("utf-8", "surrogatepass")))
    body = json.dumps(BODY | {"model": forged, forged: 1})
    served.request("POST", "/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert len(lines.records) == 2
    for record in lines.records:
        line = record.getMessage()
        assert line.isprintable()
        assert line.isascii()
        assert " 200 " not in line.split('"')[0]
        assert json.loads(json.dumps(vars(record)["fields"])) == vars(record)["fields"]


@pytest.mark.parametrize("leaves", ["within its body", "before a whole answer", "within a stream"])
def test_a_client_that_leaves_is_a_line(served: Served, lines: RequestLines, leaves: str) -> None:
    async def ask() -> None:
        received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        values = BODY | {"stream": leaves == "within a stream", "max_tokens": 400, "ignore_eos": True}
        is_whole = leaves != "within its body"
        body = json.dumps(values).encode()[: None if is_whole else 5]
        received.put_nowait({"type": "http.request", "body": body, "more_body": not is_whole})
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}

        def leave() -> None:
            received.put_nowait({"type": "http.disconnect"})

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and leaves == "within a stream":
                leave()

        if leaves == "before a whole answer":
            asyncio.get_running_loop().call_later(0.05, leave)
        elif leaves == "within its body":
            leave()
        await served.app(scope | {"raw_path": b"", "scheme": "http", "root_path": ""}, received.get, send)

    asyncio.run(asyncio.wait_for(ask(), LIMIT_S))
    line = lines.only()
    assert (line["status"], line["error"]) == (499, "The client left before the end.")
    if leaves == "within a stream":
        assert line["model"] == "demo"
        assert line["prompt_tokens"] > 0
        assert 0 < line["completion_tokens"] < 400


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_long_prompt_has_lines_that_say_how_far_it_is_read(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    lines, prefill = RequestLines(caplog), served.engine.engine.decoder._prefill
    score_chunk = prefill.score_chunk

    def slow_chunk(*given: Any) -> int:
        time.sleep(0.1)
        return score_chunk(*given)

    monkeypatch.setattr(request_log, "SLOW_S", 0.01)
    monkeypatch.setattr(request_log, "AGAIN_S", 0.02)
    monkeypatch.setattr(prefill, "score_chunk", slow_chunk)
    served.post("/v1/completions", BODY | {"prompt": "a file " * 400, "stream": is_streamed})
    *reading, ended = lines.records
    assert vars(ended)["fields"]["status"] == 200
    shown = [each.getMessage() for each in reading]
    assert re.match(r"POST /v1/completions \.\.\. \d+ of \d+ tokens of the prompt read", shown[0])
    assert re.search(r"\.\.\. [1-9]\d* of \d+ tokens of the prompt read, about \d+ s left$", shown[-1])


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_breaks_off_is_a_line_with_what_ended_it(
    async_engine: AsyncEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    lines, decoder = RequestLines(caplog), async_engine.engine.decoder
    step = decoder.step

    def slow_step() -> object:
        time.sleep(0.05)
        return step()

    monkeypatch.setattr(decoder, "step", slow_step)
    served = Served(async_engine, ServerSettings("demo", max_answer_s=2))
    body = BODY | {"max_tokens": 4000, "ignore_eos": True, "prompt": SECRET}
    response = served.post("/v1/completions", body | {"stream": is_streamed})
    assert response.status_code == (200 if is_streamed else 504)
    line = lines.only()
    assert line["status"] == 504
    assert line["error"] == "The answer takes longer than 2 seconds: ask for fewer tokens."
    assert line["prompt_tokens"] > 0
    assert line["completion_tokens"] > 0


def test_a_bug_is_a_line_and_what_it_says_stands_with_its_trace_alone(
    served: Served, lines: RequestLines, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr("reader_edge.server.endpoint.Endpoint._checked_completion_request", fail)
    assert served.post("/v1/completions", BODY).status_code == 500
    line = lines.only()
    assert (line["status"], line["error"]) == (500, "The server failed to answer; its log says why.")
    assert lines.records[0].levelno == logging.ERROR
    monkeypatch.setattr("reader_edge.server.metrics.Metrics.text", fail)
    assert served.get("/metrics").status_code == 500
    assert lines.fields[-1]["status"] == 500
    assert SECRET not in json.dumps(lines.fields)
    assert sum(record.exc_info is not None for record in caplog.records) >= 2


@pytest.fixture
def port(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server that takes one connection, and requests of a second."""
    monkeypatch.setattr(listening, "_REQUEST_S", 1.0)
    config = uvicorn.Config(served.app, http=Connection, limit_concurrency=2, log_config=None, log_level="warning")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = Thread(target=server.run, args=([place],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield place.getsockname()[1]
        server.should_exit = True
        thread.join(LIMIT_S)


def test_what_never_gets_to_the_application_is_a_line(port: int, lines: RequestLines) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
        client.sendall(b"garbage\r\n\r\n")
        assert b" 400 " in client.recv(1000)
    assert lines.fields[-1].items() >= {"status": 400, "error": "Invalid HTTP request received."}.items()
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
        client.sendall(b"GET /heal")
        assert client.recv(1000) == b""
    assert lines.fields[-1].items() >= {"status": 408}.items()
    with socket.create_connection(("127.0.0.1", port)), httpx.Client(timeout=LIMIT_S) as client_of_others:
        time.sleep(0.1)
        assert client_of_others.get(f"http://127.0.0.1:{port}/health").status_code == 503
    lines.wait(3)
    full = lines.fields[-1]
    assert (full["method"], full["path"], full["status"]) == ("GET", "/health", 503)
    assert "As many connections are open as there may be" in full["error"]
