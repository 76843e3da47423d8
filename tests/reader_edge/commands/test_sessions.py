"""`reader-edge run --session`: a conversation goes on in another process, and no kill during a save costs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reader_edge.cli import main
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, Message
from tests.reader_edge.package_copy import PackageCopy


def ask(runner: CliRunner, package: PackageCopy, kept: Path, *arguments: str) -> Result:
    command = ["run", str(package.folder), "-n", "16", "--session", str(kept), "--no-calibrate"]
    return runner.invoke(main, [*command, *arguments])


def test_a_place_where_no_session_can_be_kept_is_shown_before_anything_is_written(
    runner: CliRunner, chat_package: PackageCopy, tmp_path: Path
) -> None:
    shown = ask(runner, chat_package, tmp_path / "no" / "folder")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "There is no folder" in shown.stderr


def test_each_run_goes_on_with_the_conversation(runner: CliRunner, chat_package: PackageCopy, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = ask(runner, chat_package, kept, "-s", "Be brief.", "-p", "one")
    second = ask(runner, chat_package, kept, "-p", "two", "--stats")
    assert (first.exit_code, second.exit_code) == (0, 0), second.stderr
    engine = Engine.load(chat_package.folder, EngineConfig(is_calibrated=False))
    messages: list[Message] = [{"role": "system", "content": "Be brief."}]
    for question, result in (("one", first), ("two", second)):
        messages.append({"role": "user", "content": question})
        text = engine.generate(messages, GenerationConfig(max_tokens=16)).text
        assert result.stdout == text
        messages.append({"role": "assistant", "content": text})
    assert "(0 reused)" not in second.stderr
    assert engine.load_session(kept) == messages
    other = ask(runner, chat_package, kept, "-s", "Be long.", "-p", "three")
    assert other.exit_code == 2
    assert "began with another system message" in other.stderr


def test_a_model_without_a_template_finds_its_rows_again(
    runner: CliRunner, package: PackageCopy, tmp_path: Path
) -> None:
    prompt = "# tar\n\nArchiving utility."
    first, second = (ask(runner, package, tmp_path / "kept", "-p", prompt, "--stats") for _ in range(2))
    assert first.stdout == second.stdout
    assert "(0 reused)" in first.stderr
    assert "(0 reused)" not in second.stderr


def test_a_file_that_is_no_session_is_refused_before_a_model_is_loaded(
    runner: CliRunner, package: PackageCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = tmp_path / "letter"
    letter.write_text("dear")
    monkeypatch.setattr("reader_edge.models.model_source.load_engine", pytest.fail)
    result = ask(runner, package, letter, "-p", "one")
    assert result.exit_code == 1
    assert result.stderr == f"Error: '{letter}' is there, and no session: name another file.\n"
    assert letter.read_text() == "dear"


def test_a_damaged_session_is_one_sentence_and_stays_as_it_is(
    runner: CliRunner, package: PackageCopy, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    ask(runner, package, kept, "-p", "# tar")
    kept.write_bytes(kept.read_bytes()[:-9])
    data = kept.read_bytes()
    result = ask(runner, package, kept, "-p", "# tar")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"Error: '{kept}' is damaged: erase it and begin a new session.\n"
    assert kept.read_bytes() == data


@pytest.mark.parametrize("other", [["--history", "past"], ["--compare"]])
def test_options_that_a_session_excludes_are_named(
    runner: CliRunner, package: PackageCopy, tmp_path: Path, other: list[str]
) -> None:
    result = ask(runner, package, tmp_path / "kept", "-p", "# tar", *other)
    assert result.exit_code == 2
    assert "out." in result.stderr


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="Windows forks no process")
def test_a_kill_during_a_save_leaves_a_whole_session() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.durability.kill_saves", "--kills", "12"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("12 kills")
