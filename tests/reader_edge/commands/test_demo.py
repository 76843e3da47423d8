"""`reader-edge demo`, and what `reader-edge` alone shows: a first look."""

import os
import pty
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import reader_edge.chat.watched_answer as watched_answer
from reader_edge.cli import main
from reader_edge_runtime import Engine, GenerationConfig


def test_without_a_command_five_lines_say_what_to_do_next(runner: CliRunner) -> None:
    result = runner.invoke(main, [])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 5
    assert lines[-1].startswith("reader-edge --help")
    for line in lines[:-1]:
        assert line.split()[1] in main.commands


def test_a_pipe_gets_the_answer_and_a_reader_both_speeds(runner: CliRunner, engine: Engine) -> None:
    result = runner.invoke(main, ["demo", "-p", "# tar", "-n", "24"])
    assert result.exit_code == 0
    assert result.stdout == engine.generate("# tar", GenerationConfig(max_tokens=24)).text + "\n"
    assert re.fullmatch(r"24 tokens, the same, \d+\.\d\d times as fast with drafting.\n", result.stderr)


def test_tokens_that_differ_end_it_with_1(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((("a", [1], 1.0), ("b", [2], 1.0)))
    monkeypatch.setattr(watched_answer, "watch_answer", lambda *_: next(answers))
    result = runner.invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "reader-edge verify" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_on_a_terminal_both_answers_are_drawn_and_what_was_drafted_is_tinted(tmp_path: Path) -> None:
    seen = bytearray()

    def read(descriptor: int) -> bytes:
        part = os.read(descriptor, 1024)
        seen.extend(part)
        return part

    environment = dict(os.environ)
    os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="40")
    try:
        status = pty.spawn([sys.executable, "-m", "reader_edge", "demo", "-n", "60"], read)
    finally:
        os.environ.clear()
        os.environ.update(environment)
    text = seen.decode()
    assert status == 0
    assert re.search(r"plain, [\d,]+ tokens/s", text)
    drawn_last = text[text.rindex("─ drafted") :]
    assert "48;5;153" in drawn_last
    assert "48;5;153" not in text[: text.index("─ drafted")]
