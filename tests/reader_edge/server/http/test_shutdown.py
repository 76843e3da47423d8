"""The end of a server: answers that take too long are given up in words, and nobody keeps it from its end."""

import asyncio
import contextlib
import json
import logging
import threading
from signal import SIGINT
from typing import Any

import httpx
import pytest

from reader_edge.server import listening
from tests.reader_edge.server.conftest import LIMIT_S, Served

LONG: dict[str, Any] = {"model": "demo", "max_tokens": 500, "ignore_eos": True, "temperature": 0}
CHAT = LONG | {"messages": [{"role": "user", "content": "tar"}], "stream": True}
RESPONSE = {"model": "demo", "input": "tar", "max_output_tokens": 500, "ignore_eos": True, "stream": True}
UNFINISHED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
)


@pytest.fixture(autouse=True)
def _answers_take_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they are given up."""
    decoder, close, is_closing = served.engine.engine.decoder, served.engine.close, threading.Event()
    step = decoder.step

    def slow_step() -> object:
        is_closing.wait(0.05)
        return step()

    async def closing(cancels: bool = False) -> None:
        is_closing.set()
        await close(cancels)

    monkeypatch.setattr(decoder, "step", slow_step)
    monkeypatch.setattr(served.engine, "close", closing)


@pytest.mark.parametrize("num_signals", [1, 2])
def test_answers_that_run_too_long_are_given_up_in_words(
    served: Served, num_signals: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "_STOPPING_S", LIMIT_S * (num_signals - 1))  # a second signal waits for nobody

    async def ask() -> list[httpx.Response]:
        with listening.open_socket("127.0.0.1", 0) as place:
            host, port = place.getsockname()
            server = listening.Server(served.app, served.engine)
            serving = asyncio.create_task(server.serve([place]))
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=LIMIT_S) as client:
                bodies = {"/v1/completions": LONG | {"prompt": "# tar"}, "/v1/chat/completions": CHAT}
                bodies["/v1/responses"] = RESPONSE
                sent = [asyncio.create_task(client.post(path, json=body)) for path, body in bodies.items()]
                running = served.engine.engine.decoder.running
                while len(running) < len(sent) or not all(each.num_output_tokens for each in running):
                    await asyncio.sleep(0.01)
                for _ in range(num_signals):
                    server.handle_exit(SIGINT, None)
                server._captured_signals.clear()  # the end of this process is not meant
                answers = await asyncio.gather(*sent)
                await serving
            return answers

    with caplog.at_level(logging.INFO):
        plain, chat, response = asyncio.run(asyncio.wait_for(ask(), LIMIT_S))
    assert plain.status_code == 503
    error = plain.json()["error"]
    assert (error["message"], error["code"]) == ("The server is shutting down.", "shutting_down")
    assert chat.text.endswith(f"data: {json.dumps({'error': error})}\n\n")
    shown, _, last = response.text.rpartition("event: error\ndata: ")
    assert json.loads(last) == error | {"error": error, "type": "error", "sequence_number": shown.count("data: ")}
    faults = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.name for record in faults} == {"reader_edge.server.requests"}
    lines = [record.getMessage() for record in caplog.records if record.name == listening.__name__]
    assert lines == ["Finishing 3 answers (0 s at most); Ctrl-C again cancels them."][: 2 - num_signals]


@pytest.mark.parametrize(
    ("unfinished", "statuses"), [(UNFINISHED, [499, 503]), (UNFINISHED[:40], [503])], ids=["body", "headers"]
)
def test_a_request_that_has_not_come_whole_is_dropped_at_once_while_answers_run_on(
    served: Served, unfinished: bytes, statuses: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def hang_on() -> tuple[bytes, bool, int]:
        with listening.open_socket("127.0.0.1", 0) as place:
            host, port = place.getsockname()
            server = listening.Server(served.app, served.engine)
            serving = asyncio.create_task(server.serve([place]))
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=LIMIT_S) as client:
                sent = asyncio.create_task(client.post("/v1/completions", json=LONG | {"prompt": "# tar"}))
                while not served.engine.engine.decoder.running:
                    await asyncio.sleep(0.01)
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(unfinished)
                while len(server.server_state.connections) < 2 or len(server.server_state.tasks) < len(statuses):
                    await asyncio.sleep(0.01)
                server.handle_exit(SIGINT, None)
                with contextlib.closing(writer):
                    received = await reader.read()
                is_running = not sent.done()
                server.handle_exit(SIGINT, None)
                server._captured_signals.clear()  # the end of this process is not meant
                status = (await sent).status_code
                await serving
            return received, is_running, status

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(asyncio.wait_for(hang_on(), LIMIT_S)) == (b"", True, 503)
    assert sorted(vars(record)["fields"]["status"] for record in caplog.records) == statuses  # and no fault
