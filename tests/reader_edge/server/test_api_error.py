"""What a client is told of each kind of error, and what stays in the log."""

import logging

import pytest

from reader_edge.server.api_error import ApiError, api_error
from reader_edge_runtime.errors import (
    BusyError,
    CapacityError,
    ClosedError,
    ConfigError,
    InstallationError,
    PackageError,
    PromptError,
)

TOLD = [
    (BusyError("Full."), 429, "queue_full", "Full."),
    (ClosedError("Closed."), 503, "shutting_down", "The server is shutting down."),
    (CapacityError("Too long."), 400, "kv_cache_exceeded", "Too long."),
    (PromptError("Empty."), 400, None, "Empty."),
    (ConfigError("No."), 400, None, "No."),
    (InstallationError("Install it."), 501, None, "Install it."),
    (RecursionError("deep"), 400, None, "The body is nested too deeply."),
]


@pytest.mark.parametrize(("error", "status", "code", "message"), TOLD, ids=lambda each: type(each).__name__)
def test_mistakes_are_told_with_their_remedy(error: Exception, status: int, code: str | None, message: str) -> None:
    told = api_error(error)
    assert (told.status, told.code, str(told)) == (status, code, message)
    assert ("Retry-After" in told.response().headers) == (status in (429, 503))


def test_what_is_nobodys_mistake_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        told = api_error(PackageError("/secret/place is damaged."))
    assert told.status == 500
    assert "secret" not in str(told)
    assert "/secret/place" in caplog.text


def test_what_is_told_already_is_told_as_it_is() -> None:
    error = ApiError(413, "Too large.", "input")
    assert api_error(error) is error
