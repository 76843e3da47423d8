"""`reader-edge demo`, and what `reader-edge` alone shows: a first look."""

import re
import sys
from functools import partial
from io import StringIO

import pytest
from click.testing import CliRunner
from rich.console import Console

from reader_edge.chat import watched_answer
from reader_edge.cli import main
from reader_edge_runtime import Engine, GenerationChunk, GenerationConfig


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
    assert re.fullmatch(
        r"24 tokens, the same, \d+\.\d\d times as fast with drafting in this round; .* several\.\n", result.stderr
    )


def test_tokens_that_differ_end_it_with_1(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((("a", [1], 1.0), ("b", [2], 1.0)))
    monkeypatch.setattr(watched_answer, "watch_answer", lambda *_: next(answers))
    result = runner.invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "reader-edge verify" in result.stderr


def test_on_a_terminal_an_answer_is_drawn_as_it_comes_and_what_was_drafted_is_tinted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = StringIO()
    console = partial(Console, file=screen, force_terminal=True, width=60, height=60, color_system="256")
    monkeypatch.setattr(watched_answer, "Console", console)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    words = ["Archive", " files", " and", " more"]
    ids = [engine.tokenizer.encode(word)[0] for word in words]
    texts = [engine.tokenizer.token_bytes(each).decode() for each in ids]
    chunks = [
        GenerationChunk(texts[0], (ids[0],), sources=("",)),
        GenerationChunk("".join(texts[1:]), tuple(ids[1:]), "length", sources=("context", "context", "")),
    ]
    monkeypatch.setattr(engine, "stream", lambda prompt, config: iter(chunks))
    text, token_ids, seconds = watched_answer.watch_answer("drafted", engine, "x", GenerationConfig())
    assert (text, token_ids, seconds > 0) == ("".join(texts), ids, True)
    drawn = [line for line in screen.getvalue().splitlines() if line.startswith("│")][-1]
    assert re.sub(r"\x1b\[[\d;]*m", "", drawn).strip("│ ") == text.strip()
    tinted = "".join(re.findall(r"\x1b\[30;48;5;153m(.*?)\x1b\[0m", drawn))
    assert tinted == "".join(texts[1:3])
    assert re.search(r"─ drafted, [\d,]+ tokens/s ─", screen.getvalue())
