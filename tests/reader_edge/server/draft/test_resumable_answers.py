"""Answers that a device takes up again, and the lines of the log on devices."""

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from reader_edge.remote import frames
from reader_edge.remote.frames import Ask, Cancel, End, Resume, Started, Tokens
from reader_edge.remote.settings import hash_of
from reader_edge.server.app import make_app
from reader_edge.server.resumable_answers import ResumableAnswers
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, GenerationConfig
from tests.conftest import make_as_new
from tests.reader_edge.server.conftest import RequestLines
from tests.reader_edge.server.draft.conftest import ID, SETTINGS, DraftServer, answer_of, ask, greeted, refused, serving


def settled(server: DraftServer, num: int) -> bool:
    end = time.monotonic() + 60
    while len(server.answers) != num and time.monotonic() < end:
        time.sleep(0.01)
    return len(server.answers) == num


def test_only_who_knows_id_and_text_takes_an_answer_up(draft_server: DraftServer, hinted_engine: Engine) -> None:
    link = greeted(draft_server)
    link.send(ask(hinted_engine, max_tokens=30))
    wanted = answer_of(link)
    draft_server.connections[-1].cut()
    other = greeted(draft_server)
    for resume, words in (
        (Resume(b"x" * 16, 0, hash_of([])), "not here any more"),
        (Resume(ID, 31, hash_of(wanted)), "another text"),
        (Resume(ID, 3, hash_of([1, 2, 3])), "another text"),
    ):
        other.send(resume)
        assert words in refused(other)
    other.send(ask(hinted_engine))
    assert "of this id already" in refused(other)
    other.send(Resume(ID, 3, hash_of(wanted[:3])))
    assert answer_of(other) == wanted[3:]  # whose end may have been lost, too


def test_resuming_takes_over_from_a_stale_connection(draft_server: DraftServer, hinted_engine: Engine) -> None:
    link = greeted(draft_server)
    link.send(ask(hinted_engine, frames.VERIFY))  # of which no more than the first token comes
    assert isinstance(link.receive(60), Started)
    assert isinstance(link.receive(60), Tokens)
    other = greeted(draft_server)
    other.send(Resume(ID, 0, hash_of([])))
    assert isinstance(other.receive(60), Started)
    assert "goes to another connection, which took it up later" in refused(link)
    link.send(ask(hinted_engine, frames.NO_DRAFTS, b"o" * 16, max_tokens=3))  # as sound as it was
    assert len(answer_of(link)) == 3
    other.send(Cancel())
    while not isinstance(other.receive(60), End):
        pass


def test_answers_of_devices_that_stay_away_are_dropped(hinted_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServerSettings("demo", max_away_s=0.1)
    make_as_new(hinted_engine)
    with serving(make_app(AsyncEngine(hinted_engine), settings)) as server:
        link = greeted(server)
        link.send(ask(hinted_engine, frames.VERIFY, max_tokens=200))
        assert isinstance(link.receive(60), Started)
        server.connections[-1].cut()
        assert settled(server, 0)
    with serving(make_app(AsyncEngine(hinted_engine), SETTINGS)) as server:
        monkeypatch.setattr("reader_edge.server.resumable_answers.MAX_KEPT", 2)
        for number in range(4):
            link = greeted(server)
            link.send(ask(hinted_engine, answer_id=bytes([number] * 16), max_tokens=3))
            answer_of(link)
            server.connections[-1].cut()
        assert settled(server, 2)


def test_a_request_left_early_can_be_repeated(draft_server: DraftServer, hinted_engine: Engine) -> None:
    wanted = list(hinted_engine.generate("# tar", GenerationConfig(max_tokens=5)).token_ids)
    make_as_new(hinted_engine)
    with hinted_engine.working():  # nothing is decoded meanwhile
        for number in range(12):  # of 8 that may run or wait
            link = greeted(draft_server)
            link.send(ask(hinted_engine, answer_id=bytes([number] * 16), max_tokens=5))
            assert settled(draft_server, 1)
            draft_server.connections[-1].cut()
            assert settled(draft_server, 0)
    other = greeted(draft_server)
    other.send(Resume(ID, 0, hash_of([])))
    assert "not here any more" in refused(other)
    other.send(ask(hinted_engine, max_tokens=5))
    assert answer_of(other) == wanted


def test_an_answer_that_takes_too_long_is_given_up(hinted_engine: Engine) -> None:
    make_as_new(hinted_engine)
    settings = ServerSettings("demo", max_answer_s=0.2)
    with serving(make_app(AsyncEngine(hinted_engine), settings)) as server:
        link = greeted(server)
        link.send(ask(hinted_engine, frames.VERIFY))
        assert "longer than 0.2 seconds" in refused(link)
        assert settled(server, 0)


def test_what_is_not_there_can_be_left_and_dropped() -> None:
    answers = ResumableAnswers(1.0)
    answers.leave(ID)
    answers.drop(ID)
    assert len(answers) == 0


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
def test_a_device_that_leaves_is_a_line(is_lost: bool, error: str, hinted_engine: Engine, lines: RequestLines) -> None:
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


def test_a_refused_socket_is_a_line(
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
def test_prompts_of_devices_may_be_logged(logs_prompts: bool, hinted_engine: Engine, lines: RequestLines) -> None:
    token_ids = hinted_engine.encode_prompt("# tar")

    def use(server: DraftServer) -> None:
        link = greeted(server)
        link.send(Ask(ID, frames.HINTS, b'{"max_tokens": 4}', token_ids))
        answer_of(link)

    answer, _ = logged(hinted_engine, lines, use, logs_prompts=logs_prompts)
    assert answer.get("prompt") == (f'{{"prompt": {token_ids}}}' if logs_prompts else None)
