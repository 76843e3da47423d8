"""Answers kept for devices that were cut off: who takes them up, and when they are dropped."""

import time

import pytest

from reader_edge.remote import frames
from reader_edge.remote.frames import Cancel, End, Resume, Started, Tokens
from reader_edge.remote.settings import hash_of
from reader_edge.server.app import make_app
from reader_edge.server.resumable_answers import ResumableAnswers
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, GenerationConfig
from tests.conftest import make_as_new
from tests.reader_edge.server.draft.app_connection import DraftServer, serving
from tests.reader_edge.server.draft.conftest import SETTINGS
from tests.reader_edge.server.draft.device_links import ID, answer_of, ask, greeted, refused


def settled(server: DraftServer, num: int) -> bool:
    end = time.monotonic() + 60
    while len(server.app.state.draft_answers) != num and time.monotonic() < end:
        time.sleep(0.01)
    return len(server.app.state.draft_answers) == num


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


def test_who_takes_an_answer_up_takes_it_from_a_connection_that_only_seems_to_live(
    draft_server: DraftServer, hinted_engine: Engine
) -> None:
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


def test_a_request_left_before_it_began_is_dropped_and_can_be_repeated(
    draft_server: DraftServer, hinted_engine: Engine
) -> None:
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
