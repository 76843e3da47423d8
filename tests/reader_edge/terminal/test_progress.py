"""Progress of long tasks: drawn on a terminal, where lines shown meanwhile stay whole, and plain lines in a pipe."""

import io
import sys

import pytest

from reader_edge.terminal.console import work_progress
from reader_edge.terminal.formatting import readable_time


def _work() -> None:
    with work_progress("Making a thing") as work:
        work.on_stage("measuring")
        work.tell("It takes a while.")
        work.on_stage("writing")
        for done in range(1, 8):
            work.on_progress(done, 7)
        work.on_stage("checking")


def _standard_error(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> io.StringIO:
    output = io.StringIO()
    monkeypatch.setattr(output, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", output)
    monkeypatch.setenv("TERM", "xterm")
    return output


def test_in_a_pipe_each_stage_and_each_shown_line_is_a_line_and_nothing_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = _standard_error(monkeypatch, is_terminal=False)
    _work()
    assert shown.getvalue().splitlines() == [
        "Making a thing: measuring",
        "It takes a while.",
        "Making a thing: writing",
        "Making a thing: checking",
    ]


def test_on_a_terminal_every_stage_is_drawn_what_is_counted_too_and_shown_lines_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = _standard_error(monkeypatch, is_terminal=True)
    with work_progress("Making a thing") as work:
        for stage in ("measuring", "writing", "checking"):
            work.on_stage(stage)
            work.tell(f"Reported while {stage}.")
        work.on_progress(3, 7)
    drawn = shown.getvalue()
    for stage in ("measuring", "writing", "checking"):
        assert f"Making a thing: {stage}" in drawn
        assert f"\x1b[2KReported while {stage}.\n" in drawn
    assert "43%" in drawn
    assert "0 s left" in drawn
    assert drawn.endswith("\x1b[2K")  # gone in the end


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (3599, "1 h 0 min"), (4800, "1 h 20 min")]
)
def test_times_are_shown_as_exactly_as_somebody_who_waits_wants_them(seconds: float, shown: str) -> None:
    assert readable_time(seconds) == shown
