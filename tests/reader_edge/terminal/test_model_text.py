"""Text on terminals and in the log: control characters, messages while a model writes, levels."""

import io
import json
import logging
import os
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

from reader_edge.cli import main
from reader_edge.terminal.console import byte_progress, phase_progress, print_pairs, print_report, print_table
from reader_edge.terminal.formatting import visible
from reader_edge.terminal.log import log_to_stderr
from reader_edge.terminal.model_text import ModelText, write
from tests.reader_edge.package_copy import PackageCopy


def one_place(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> io.StringIO:
    """Where both streams go. Called in the test itself, since pytest replaces the streams after fixtures have run."""
    place = io.StringIO()
    monkeypatch.setattr(place, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", place)
    monkeypatch.setattr(sys, "stderr", place)
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: place.write(f"Warning: {message}\n"))
    return place


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.filterwarnings("always")
def test_what_an_answer_waits_for_is_shown_at_once(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = one_place(monkeypatch, is_terminal)
    text = ModelText()
    with text.coming():
        text.write("one ")
        warnings.warn("Stage 1 is gone.", RuntimeWarning, stacklevel=1)
        assert shown.getvalue() == "one \nWarning: Stage 1 is gone.\n"
        warnings.warn("It is gone.", RuntimeWarning, stacklevel=1)
        text.write("")
        warnings.warn("A file is full.", stacklevel=1)
        text.write("two\n")
        warnings.warn("It is back.", RuntimeWarning, stacklevel=1)
    text.start_line()
    assert shown.getvalue().splitlines()[1:] == [
        *("Warning: Stage 1 is gone.", "Warning: It is gone."),
        *("two", "Warning: It is back.", "Warning: A file is full."),
    ]
    assert "".join(text.pieces) == "one two\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_error_is_kept_apart(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = one_place(monkeypatch, is_terminal)

    def interrupted(*pieces: str) -> None:
        text = ModelText()
        with text.coming():
            for piece in pieces:
                text.write(piece)
            raise KeyboardInterrupt

    for pieces in (("It",), ()):  # within a word, and before any
        with pytest.raises(KeyboardInterrupt):
            interrupted(*pieces)
        assert shown.getvalue() == "It\n"


def test_only_a_terminal_s_line_is_ended(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal, ends_line, out, err in (
        *((True, None, "It\n", ""), (False, None, "It", "\n")),
        (False, True, "It\n", ""),  # of a chat, whose answers each end their line
    ):
        monkeypatch.setattr("sys.stdout.isatty", lambda is_terminal=is_terminal: is_terminal)
        text = ModelText(ends_line)
        with text.coming():
            text.write("It")
        text.start_line()
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == (out, err)


HOSTILE = "\x1b[2J\x9b1m\x07\r[/red]:smile:"
SHOWN = r"\x1b[2J\x9b1m\x07\r[/red]:smile:"


def test_control_characters_but_tab_and_line_feed_are_spelt_out() -> None:
    assert visible(f"a\tb\n{HOSTILE}ü\x7f\x00") == r"a	b" + f"\n{SHOWN}ü" + r"\x7f\x00"
    assert visible("a\u202eb\u2066c\u2069\u200f") == "a\\u202eb\\u2066c\\u2069\u200f"


def test_tables_reports_and_phases_show_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title="\x1b[2J[/x]")
    table.add_column("\x1b[2J[/x]")
    table.add_row("\x1b[2J[/x]")
    print_table(table)
    print_report(table, "\x1b[2J[/x]")
    print_pairs([("\x1b[2J[/x]", "\x1b[2J[/x]")])
    with phase_progress("\x1b[2J[/x]") as on_phase:
        on_phase("\x1b[2J[/x]")
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert captured.err.count(r"\x1b[2J[/x]") == 5
    assert captured.out.count(r"\x1b[2J[/x]") == 6


def test_what_a_template_refuses_with_is_one_spelt_out_line(runner: CliRunner, package: PackageCopy) -> None:
    package.write_file("chat_template.jinja", rb"{{ raise_exception('\x1b[2J\nError: none') }}")
    result = runner.invoke(main, ["run", str(package.folder), "-p", "x"], color=True)
    assert result.exit_code == 1
    assert result.stderr.endswith("refuses these messages: \\x1b[2J Error: none.\n")
    assert result.stderr.count("\n") == 1


def test_an_answer_is_spelt_out_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal, wanted in ((True, "\\x1b[31mred\n"), (False, "\x1b[31mred\n")):
        output = io.StringIO()
        monkeypatch.setattr(output, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stdout", output)
        write("\x1b[31mred\n")
        assert output.getvalue() == wanted


def test_what_a_binary_table_holds_is_spelt_out(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra 'series' reads tables")
    table = tmp_path / "table.csv"
    for data in (b"\x1b[2Ja\n\x1b[2J,1\n", b"\x1b[2Ja,b\n1,x\n", b"\x1b[2Ja,b\nx,\x07\n"):
        table.write_bytes(data)
        result = CliRunner().invoke(main, ["series", "forecast", str(table), "--horizon", "3"], color=True)
        assert result.exit_code == 1
        assert not {"\x1b", "\x07"} & set(result.output)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize("arguments", [["info"], ["--help"]])
def test_output_to_a_full_device_is_one_sentence(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "reader_edge", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    assert result.returncode == 1
    assert result.stderr == "Error: The output cannot be used: No space left on device: free some space.\n"


def test_progress_on_a_terminal_shows_labels_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    shown.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with phase_progress("\x1b[2J[/x]") as on_phase:
        on_phase("\x1b[2J")
    with byte_progress("\x1b[2J") as on_progress:
        on_progress(1, 2)
    assert shown.getvalue().count(r"\x1b[2J") >= 3
    assert "\x1b[2J" not in shown.getvalue()


def test_how_much_of_a_prompt_is_read_is_drawn_where_it_takes_long(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    shown.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("reader_edge.terminal.console.stderr_console", lambda: Console(file=shown))
    for late_s, is_drawn in ((1e9, False), (-1.0, True)):
        monkeypatch.setattr("reader_edge.terminal.console._LATE_S", late_s)
        result = runner.invoke(main, ["run", "--no-calibrate", "-p", "# tar " * 400, "-n", "4"])
        assert result.exit_code == 0
        assert ("Reading the prompt" in shown.getvalue()) == is_drawn


def test_where_answers_were_recorded_is_spelt_out(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("# tar")
    out = tmp_path / "\x1b[2J.jsonl"
    arguments = ["--prompts", str(tmp_path / "prompts.txt"), "-n", "1", "--threads", "1"]
    result = runner.invoke(main, ["bench", "record", "-o", str(out), *arguments])
    assert (result.exit_code, out.exists()) == (0, True)
    assert r"\x1b[2J.jsonl" in result.output
    assert "\x1b" not in result.output


LOG, ROOT = logging.getLogger("reader_edge.some.part"), logging.getLogger()
BREAKERS = "a\nb\r\x1b[2J\x85\u2028\u202e\ud800"


def logged(capsys: pytest.CaptureFixture[str], level: str = "info", log_format: str = "text") -> list[str]:
    """Lines of a few records, one of them with a trace."""
    before, ROOT.handlers = ROOT.handlers, []  # pytest's own hand a lone surrogate on, which no process can be sent
    with log_to_stderr(level, log_format):
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
    objects = [json.loads(line) for line in logged(capsys, log_format="json")]
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
