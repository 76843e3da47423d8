"""Connections of devices: who gets one, what ends it, and what a server without drafts says on it."""

import asyncio
from typing import Any

import pytest

from reader_edge.remote import frames
from reader_edge.remote.connection import FrameConnection
from reader_edge.remote.frames import Started
from reader_edge.server import draft_endpoint
from reader_edge.server.app import make_app
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig
from tests.conftest import make_as_new
from tests.reader_edge.server.draft.app_connection import AppConnection, DraftServer, serving
from tests.reader_edge.server.draft.conftest import SETTINGS
from tests.reader_edge.server.draft.device_links import answer_of, ask, greeted, refused


def test_a_server_that_shuts_down_says_so(hinted_engine: Engine) -> None:
    make_as_new(hinted_engine)
    with serving(make_app(engine := AsyncEngine(hinted_engine), SETTINGS)) as server:
        link = greeted(server)
        link.send(ask(hinted_engine, frames.VERIFY))
        assert isinstance(link.receive(60), Started)
        asyncio.run_coroutine_threadsafe(engine.close(cancels=True), server.loop).result(60)
        assert "shutting down" in refused(link)


def test_silence_ends_a_connection(draft_server: DraftServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_endpoint, "_GREETING_S", 0.05)
    monkeypatch.setattr(draft_endpoint, "_IDLE_S", 0.05)
    assert "No greeting came" in refused(FrameConnection(draft_server.connection(), "http://here"))
    assert "No request came" in refused(greeted(draft_server))


def test_more_devices_than_may_be_are_refused(draft_server: DraftServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_endpoint, "_MAX_CONNECTIONS", 1)
    greeted(draft_server)
    assert "connected already" in refused(FrameConnection(draft_server.connection(), "http://here"))


def test_who_may_not_ask_gets_no_socket(draft_server: DraftServer, hinted_engine: Engine) -> None:
    def status(server: DraftServer, **headers: str) -> int | None:
        return server.connection(**headers).status

    assert status(draft_server, origin="http://evil.example") == 403
    assert status(draft_server, host="evil.example") == 403
    assert status(draft_server) is None
    key = "k" * 32
    with serving(make_app(AsyncEngine(hinted_engine), ServerSettings("demo", (key.encode(),)))) as server:
        assert status(server) == 401
        assert status(server, authorization="Bearer wrong") == 401
        assert status(server, authorization=f"Bearer {key}") is None


def test_a_device_that_leaves_before_it_is_refused_is_no_fault(draft_server: DraftServer) -> None:
    connection: AppConnection = draft_server.connection()
    connection.send_and_leave(b"nonsense")
    connection.served.result(60)


def test_a_server_that_drafts_nothing_verifies_nothing(demo_folder: Any) -> None:
    engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_drafted=False))
    with serving(make_app(AsyncEngine(engine), SETTINGS)) as server:
        link = greeted(server)
        link.send(ask(engine, frames.VERIFY))
        assert "No drafts are verified here, since it was switched off" in refused(link)
        link.send(ask(engine, max_tokens=5))
        assert len(answer_of(link)) == 5
