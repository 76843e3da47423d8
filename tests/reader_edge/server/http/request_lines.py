"""The log's lines of requests, as their fields."""

import logging
import time
from typing import Any

import pytest

from tests.reader_edge.server.conftest import LIMIT_S


class RequestLines:
    """Those of a test."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, "reader_edge.server.requests")

    @property
    def records(self) -> list[logging.LogRecord]:
        return [each for each in self._caplog.records if each.name == "reader_edge.server.requests"]

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [vars(each)["fields"] for each in self.records]

    def wait(self, num_lines: int) -> None:
        """Until there are so many: behind an answer over a real socket, its line comes a moment later."""
        end = time.monotonic() + LIMIT_S
        while len(self.fields) < num_lines:
            assert time.monotonic() < end
            time.sleep(0.01)

    def only(self) -> dict[str, Any]:
        """The fields of the only line."""
        (fields,) = self.fields
        return fields
