"""Lines of the log of devices that draft: one for each connection, and one for each answer over it."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from reader_edge.remote import frames
from reader_edge.remote.frames import Ask, Cancel, Resume, Started
from reader_edge.server.app import make_app
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine
from tests.conftest import make_as_new
from tests.reader_edge.server.draft.app_connection import DraftServer, serving
from tests.reader_edge.server.draft.conftest import SETTINGS
from tests.reader_edge.server.draft.device_links import ID, answer_of, ask, greeted, refused
from tests.reader_edge.server.http.request_lines import RequestLines

KEY = "k" * 32


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> RequestLines:
    return RequestLines(caplog)


def logged(engine: Engine, lines: RequestLines, use: Callable[[DraftServer], None], **settings: Any) -> list[Any]:
    """What is logged of the use of a server, once all its connections have ended; without seconds."""
    make_as_new(engine)
    options = {name: getattr(SETTINGS, name) for name in ("model_name", "max_tokens")} | settings
    with serving(make_app(AsyncEngine(engine), ServerSettings(**options))) as server:
        use(server)
    fields = lines.fields
    assert all(each.pop("seconds") >= 0 for each in fields)
    assert all(each.pop("path") == frames.DRAFT_PATH for each in fields)
    return fields


def test_an_answer_is_a_line_and_so_is_its_connection(hinted_engine: Engine, lines: RequestLines) -> None:
    def use(server: DraftServer) -> None:
        link = greeted(server)
        link.send(ask(hinted_engine, max_tokens=12))
        assert answer_of(link)

    answer, connection = logged(hinted_engine, lines, use)
    assert 0 <= answer.pop("accepted_tokens") <= 12
    assert answer.pop("prompt_tokens") > 0
    assert answer == {"method": "ASK", "status": 200, "model": "demo", "completion_tokens": 12}
    assert connection == {"method": "WEBSOCKET", "status": 101}


def test_a_refused_answer_is_a_line_and_its_connection_goes_on(hinted_engine: Engine, lines: RequestLines) -> None:
    def use(server: DraftServer) -> None:
        link = greeted(server)
        link.send(Resume(ID, 0, bytes(32)))
        refused(link)
        link.send(ask(hinted_engine, max_tokens=5))
        answer_of(link)

    refusal, answer, connection = logged(hinted_engine, lines, use)
    assert (refusal["method"], refusal["status"]) == ("RESUME", 404)
    assert "The answer is not here any more" in refusal["error"]
    assert (answer["status"], connection["status"]) == (200, 101)


def test_a_frame_that_is_none_is_logged_for_the_connection(hinted_engine: Engine, lines: RequestLines) -> None:
    def use(server: DraftServer) -> None:
        link = greeted(server)
        server.connections[-1].send(b"RD\x02\x91\x63")
        refused(link)

    (connection,) = logged(hinted_engine, lines, use)
    assert (connection["method"], connection["status"]) == ("WEBSOCKET", 400)
    assert "Invalid value 99" in connection["error"]


@pytest.mark.parametrize(
    ("is_lost", "error"), [(False, "The device wanted no more."), (True, "The client left before the end.")]
)
def test_a_device_that_wants_no_more_or_is_lost_is_a_line(
    is_lost: bool, error: str, hinted_engine: Engine, lines: RequestLines
) -> None:
    def use(server: DraftServer) -> None:
        link = greeted(server)
        link.send(ask(hinted_engine, max_tokens=300))
        assert isinstance(link.receive(60), Started)
        if is_lost:
            server.connections[-1].cut()
        else:
            link.send(Cancel())
            answer_of(link)

    answer, connection = logged(hinted_engine, lines, use)
    assert (answer["method"], answer["status"], answer["error"]) == ("ASK", 499, error)
    assert answer["prompt_tokens"] > 0
    assert connection["status"] == 101


def test_who_gets_no_socket_is_a_line_without_the_key(
    hinted_engine: Engine, lines: RequestLines, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "reader_edge")

    def use(server: DraftServer) -> None:
        server.connection(authorization="Bearer a-wrong-key-of-somebody")
        server.connection(authorization=f"Bearer {KEY}", origin="http://evil.example")

    refusals = logged(hinted_engine, lines, use, api_keys=(KEY.encode(),))
    assert [each["status"] for each in refusals] == [401, 403]
    assert "The API key is missing or wrong" in refusals[0]["error"]
    assert "Pages get no drafting sockets" in refusals[1]["error"]
    assert not any(key in caplog.text for key in ("a-wrong-key", KEY, "Bearer k"))


@pytest.mark.parametrize("logs_prompts", [False, True])
def test_prompts_of_devices_are_logged_on_request(
    logs_prompts: bool, hinted_engine: Engine, lines: RequestLines
) -> None:
    token_ids = hinted_engine.encode_prompt("# tar")

    def use(server: DraftServer) -> None:
        link = greeted(server)
        link.send(Ask(ID, frames.HINTS, b'{"max_tokens": 4}', token_ids))
        answer_of(link)

    answer, _ = logged(hinted_engine, lines, use, logs_prompts=logs_prompts)
    assert answer.get("prompt") == (f'{{"prompt": {token_ids}}}' if logs_prompts else None)
