"""What a client is shown of each kind of error, and what stays in the log."""

import asyncio
import logging
from pathlib import Path

import pytest

from reader_edge.server.api_error import ApiError, api_error
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig
from reader_edge_runtime.errors import (
    BusyError,
    CapacityError,
    ClosedError,
    ConfigError,
    InstallationError,
    PackageError,
    PromptError,
    StageLostError,
)
from tests.reader_edge.server.conftest import Served

SHOWN = [
    (BusyError("Full."), 429, "queue_full", "Full."),
    (ClosedError("Closed."), 503, "shutting_down", "The server is shutting down."),
    (CapacityError("Too long."), 400, "kv_cache_exceeded", "Too long."),
    (PromptError("Empty."), 400, None, "Empty."),
    (ConfigError("No."), 400, None, "No."),
    (InstallationError("Install it."), 501, None, "Install it."),
    (RecursionError("deep"), 400, None, "The body is nested too deeply: make it flatter."),
]


@pytest.mark.parametrize(("error", "status", "code", "message"), SHOWN, ids=lambda each: type(each).__name__)
def test_mistakes_are_shown_with_their_remedy(error: Exception, status: int, code: str | None, message: str) -> None:
    shown = api_error(error)
    assert (shown.status, shown.code, str(shown)) == (status, code, message)
    assert ("Retry-After" in shown.response().headers) == (status in (429, 503))


def test_what_is_nobodys_mistake_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        shown = api_error(PackageError("/secret/place is damaged."))
    assert shown.status == 500
    assert "secret" not in str(shown)
    assert "/secret/place" in caplog.text


def test_a_lost_box_is_named_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        shown = api_error(StageLostError("Stage 1 at tcp://10.0.0.1:8001 is lost."))
    assert (shown.status, shown.code) == (503, "stage_lost")
    assert "10.0.0.1" not in str(shown)
    assert [record.getMessage() for record in caplog.records] == ["Stage 1 at tcp://10.0.0.1:8001 is lost."]
    assert caplog.records[0].exc_info is None


def test_what_is_shown_already_is_shown_as_it_is() -> None:
    error = ApiError(413, "Too large.", "input")
    assert api_error(error) is error


@pytest.mark.parametrize(
    ("path", "fields", "plain_path"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}, "/v1/completions"),
        ("/v1/responses", {"input": "hello"}, "/v1/completions"),
        ("/api/chat", {"messages": [{"role": "user", "content": "hello"}]}, "/api/generate"),
    ],
)
def test_a_model_without_a_template_names_the_path_for_plain_prompts(
    demo_folder: Path, path: str, fields: dict[str, object], plain_path: str
) -> None:
    engine = AsyncEngine(Engine.load(demo_folder, EngineConfig(is_calibrated=False)))
    response = Served(engine, ServerSettings("demo", max_tokens=8)).post(path, {"model": "demo", **fields})
    asyncio.run(engine.close(cancels=True))
    assert response.status_code == 400
    assert f"send a plain prompt to {plain_path} instead of messages." in response.text
