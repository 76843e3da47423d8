"""Nothing from outside moves the terminal's cursor; an answer in a pipe is what the model wrote."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.table import Table

from reader_edge.cli import main
from reader_edge.terminal.console import byte_progress, print_pairs, print_report, print_table, stage_progress
from reader_edge.terminal.formatting import visible
from reader_edge.terminal.model_text import write
from tests.reader_edge.package_copy import PackageCopy

HOSTILE = "\x1b[2J\x9b1m\x07\r[/red]:smile:"
SHOWN = r"\x1b[2J\x9b1m\x07\r[/red]:smile:"


def test_control_characters_but_tab_and_line_feed_are_spelt_out() -> None:
    assert visible(f"a\tb\n{HOSTILE}ü\x7f\x00") == r"a	b" + f"\n{SHOWN}ü" + r"\x7f\x00"
    assert visible("a\u202eb\u2066c\u2069\u200f") == "a\\u202eb\\u2066c\\u2069\u200f"


def test_tables_reports_and_stages_show_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title="\x1b[2J[/x]")
    table.add_column("\x1b[2J[/x]")
    table.add_row("\x1b[2J[/x]")
    print_table(table)
    print_report(table, "\x1b[2J[/x]")
    print_pairs([("\x1b[2J[/x]", "\x1b[2J[/x]")])
    with stage_progress("\x1b[2J[/x]") as on_stage:
        on_stage("\x1b[2J[/x]")
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
    with stage_progress("\x1b[2J[/x]") as on_stage:
        on_stage("\x1b[2J")
    with byte_progress("\x1b[2J") as on_progress:
        on_progress(1, 2)
    assert shown.getvalue().count(r"\x1b[2J") >= 3
    assert "\x1b[2J" not in shown.getvalue()


def test_where_answers_were_recorded_is_spelt_out(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("# tar")
    out = tmp_path / "\x1b[2J.jsonl"
    arguments = ["--prompts", str(tmp_path / "prompts.txt"), "-n", "1", "--threads", "1"]
    result = runner.invoke(main, ["bench", "record", "-o", str(out), *arguments])
    assert (result.exit_code, out.exists()) == (0, True)
    assert r"\x1b[2J.jsonl" in result.output
    assert "\x1b" not in result.output
