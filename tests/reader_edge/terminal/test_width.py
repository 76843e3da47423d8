"""Tables, times and progress at every width, in pipes too."""

import io
import re
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from reader_edge.cli import main
from reader_edge.models.store import StoredModel
from reader_edge.terminal.console import (
    figures_table,
    pairs_table,
    print_columns,
    print_pairs,
    print_report,
    work_progress,
)
from reader_edge.terminal.formatting import exact_time, readable_time

LONG = "a name of many words that no narrow terminal has room for, and " + "x" * 90


def _letters(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", text)


@pytest.mark.parametrize("columns", [40, 100])
@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "-p", "# tar", "-n", "8", "--compare", "--stats"],
        ["info"],
        ["bench", "decode", "-n", "4", "--rounds", "1"],
        ["doctor"],
    ],
    ids=lambda each: "-".join(word for word in each if word.isalpha()),
)
def test_reports_keep_to_the_width(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: int, arguments: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("# tar\n# git\n")
    given = [*arguments, "--prompts", str(prompts)] if arguments[0] == "bench" else arguments
    result = runner.invoke(main, given)
    assert result.exit_code in (0, 1), result.output
    shown = result.stderr if arguments[0] == "run" else result.output
    assert shown.count("\n") > 5
    assert [line for line in shown.splitlines() if cell_len(line) > columns] == []


def test_nothing_is_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    table = figures_table("Title", "name", "figure")
    table.add_row(LONG, "1.5")
    print_report(table, pairs_table("Pairs", [("name", LONG), (LONG, "value")]))
    print_pairs([("name", LONG)])
    print_columns([("NAME", "SIZE"), (LONG, "5 MB")])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 50
    assert shown.count("x") == 5 * 90
    assert "…" not in shown


@pytest.mark.parametrize("columns", ["", "0x10", "-5", "999999999"])
def test_a_width_that_says_nothing_of_use_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_pairs([("name", LONG)])
    assert capsys.readouterr().out == f"name  {LONG}\n"


def test_a_list_of_models_keeps_to_it_too(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stored = StoredModel("owner/" + "a-model-of-a-long-name-" * 4)
    with stored.locked():
        (stored.folder / "source").mkdir()
        shown = runner.invoke(main, ["list"]).stdout
        (stored.folder / "source").rmdir()
    assert max(map(len, shown.splitlines())) <= 60
    assert "source" in shown


def test_columns_give_way_and_lose_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_columns([("a" * 50, "package, gguf, not tuned", "8.5 MB", "2026-11-28 21:46")])
    assert capsys.readouterr().out.splitlines() == [
        "aaaaaaaaaaaaaaaaaaaa  package,      8.5 MB  2026-11-28 21:46",
        "aaaaaaaaaaaaaaaaaaaa  gguf, not",
        "aaaaaaaaaa            tuned",
    ]


def _work() -> None:
    with work_progress("Making a thing") as work:
        work.on_phase("measuring")
        work.on_message("It takes a while.")
        work.on_phase("writing")
        for done in range(1, 8):
            work.on_progress(done, 7)
        work.on_phase("checking")


def _standard_error(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> io.StringIO:
    output = io.StringIO()
    monkeypatch.setattr(output, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", output)
    monkeypatch.setenv("TERM", "xterm")
    return output


def test_in_a_pipe_each_phase_is_a_line_and_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _standard_error(monkeypatch, is_terminal=False)
    _work()
    assert shown.getvalue().splitlines() == [
        "Making a thing: measuring",
        "It takes a while.",
        "Making a thing: writing",
        "Making a thing: checking",
    ]


def test_in_a_pipe_a_long_phase_has_a_line_for_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _standard_error(monkeypatch, is_terminal=False)
    with work_progress("Making a thing") as work:
        work.on_phase("writing")
        work.on_progress(1, 3)
        monkeypatch.setattr("reader_edge.terminal.console._BETWEEN_LINES_S", -1.0)
        work.on_progress(2, 3)
    assert shown.getvalue().splitlines() == ["Making a thing: writing", "Making a thing: writing, 67%"]


def test_on_a_terminal_every_phase_is_drawn_and_lines_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _standard_error(monkeypatch, is_terminal=True)
    with work_progress("Making a thing") as work:
        for phase in ("measuring", "writing", "checking"):
            work.on_phase(phase)
            work.on_message(f"Reported while {phase}.")
        work.on_progress(3, 7)
    drawn = shown.getvalue()
    for phase in ("measuring", "writing", "checking"):
        assert f"Making a thing: {phase}" in drawn
        assert f"\x1b[2KReported while {phase}.\n" in drawn
    assert "43%" in drawn
    assert "0 s left" in drawn
    assert drawn.endswith("\x1b[2K")  # gone in the end


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (3599, "1 h 0 min"), (4800, "1 h 20 min")]
)
def test_times_are_shown_as_exactly_as_somebody_who_waits_wants_them(seconds: float, shown: str) -> None:
    assert readable_time(seconds) == shown


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (timedelta(hours=1), "1 hour"),
        (timedelta(minutes=15), "15 minutes"),
        (timedelta(days=2, minutes=30, seconds=1, microseconds=500_000), "2 days 30 minutes 1.5 seconds"),
        (timedelta(days=1_000_000, microseconds=1), "1000000 days 0.000001 seconds"),
        (timedelta(minutes=10, seconds=10), "10 minutes 10 seconds"),
        (timedelta(), "0 seconds"),
    ],
)
def test_a_time_is_shown_exactly_and_in_words(time: timedelta, shown: str) -> None:
    assert exact_time(time) == shown
