"""The log on standard error: lines that stay lines, and objects of JSON."""

import json
import logging
from datetime import UTC, datetime

import pytest

from reader_edge.terminal.log import log_to_stderr

LOG, ROOT = logging.getLogger("reader_edge.some.part"), logging.getLogger()
BREAKERS = "a\nb\r\x1b[2J\x85\u2028\u202e\ud800"


def logged(capsys: pytest.CaptureFixture[str], level: str = "info", form: str = "text") -> list[str]:
    """Lines of a few records, one of them with a trace."""
    before, ROOT.handlers = ROOT.handlers, []  # pytest's own hand a lone surrogate on, which no process can be sent
    with log_to_stderr(level, form):
        LOG.debug("small")
        LOG.info("%s", BREAKERS, extra={"fields": {"path": BREAKERS}})
        LOG.warning("odd")
        try:
            raise ValueError("first\n2026-01-01T00:00:00.000Z INFO forged")
        except ValueError:
            LOG.exception("bad")
        logging.getLogger("elsewhere").info("chatter")
        logging.getLogger("elsewhere").warning("of a library")
    ROOT.handlers = before
    LOG.error("after")
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_a_record_is_a_line_and_a_trace_stands_below_it_with_a_margin(capsys: pytest.CaptureFixture[str]) -> None:
    lines = logged(capsys)
    heads = [line for line in lines if not line.startswith("    ")]
    assert [line.split(" ", 1)[1] for line in heads] == [
        r"INFO a\nb\r\x1b[2J\x85\u2028\u202e\ud800",
        "WARNING odd",
        "ERROR bad",
        "WARNING of a library",
    ]
    for line in heads:
        moment = datetime.fromisoformat(line.split(" ")[0])
        assert abs((datetime.now(UTC) - moment).total_seconds()) < 600
    assert "    2026-01-01T00:00:00.000Z INFO forged" in lines


def test_as_json_every_line_is_an_object_with_the_fields_of_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    objects = [json.loads(line) for line in logged(capsys, form="json")]
    assert [set(each) for each in objects] == [
        {"time", "level", "logger", "path"},
        {"time", "level", "logger", "message"},
        {"time", "level", "logger", "message", "exception"},
        {"time", "level", "logger", "message"},
    ]
    first, odd, bad, other = objects
    assert first["path"] == BREAKERS
    assert (odd["level"], odd["logger"], odd["message"]) == ("warning", "reader_edge.some.part", "odd")
    assert "ValueError: first\n" in bad["exception"]
    assert other["logger"] == "elsewhere"


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["small", "a", "odd", "bad", "of a library"]),
        ("info", ["a", "odd", "bad", "of a library"]),
        ("warning", ["odd", "bad", "of a library"]),
        ("error", ["bad"]),
    ],
)
def test_nothing_below_the_level_is_shown(capsys: pytest.CaptureFixture[str], level: str, shown: list[str]) -> None:
    messages = [line.split(" ", 2)[2] for line in logged(capsys, level) if not line.startswith("    ")]
    assert [each.split("\\n")[0] for each in messages] == shown


def test_a_closed_standard_error_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, _: str) -> None:
            raise BrokenPipeError

    with log_to_stderr("info", "text"):
        monkeypatch.setattr("sys.stderr", Closed())
        LOG.warning("nobody reads this")
