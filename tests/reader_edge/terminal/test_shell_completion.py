"""Shells complete names of models, whose colons are no ends of words, after one command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.models.catalogue import CATALOGUE
from reader_edge.models.store import StoredModel


@pytest.fixture(autouse=True)
def nothing_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests leave models in the cache that they share."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def _completed(runner: CliRunner, line: str, breaks: str = " :") -> list[str]:
    environment = {"_READER_EDGE_COMPLETE": "bash_complete", "COMP_LINE": line, "COMP_WORDBREAKS": breaks}
    result = runner.invoke(main, prog_name="reader-edge", env=environment)
    return [entry.partition(",")[2] for entry in result.stdout.splitlines() if entry.startswith("plain")]


def test_names_of_the_catalogue_are_completed_behind_their_colon(runner: CliRunner) -> None:
    assert set(_completed(runner, "reader-edge run ")) == set(CATALOGUE)
    assert _completed(runner, "reader-edge run smollm2:13") == ["135m"]
    assert "smollm2:135m" in _completed(runner, "reader-edge run smollm2:13", breaks=" ")
    assert "smollm2:135m" in _completed(runner, "reader-edge run -p hello --draft-model smol")


def test_what_is_stored_is_completed_too(runner: CliRunner) -> None:
    with StoredModel("owner/a-model").locked():
        (StoredModel("owner/a-model").folder / "source").mkdir()
    assert _completed(runner, "reader-edge run owner/") == ["owner/a-model"]
    assert _completed(runner, "reader-edge rm ") == ["owner/a-model"]  # nothing else can be removed
    shutil.rmtree(StoredModel("owner/a-model").folder)


def test_other_words_are_files(runner: CliRunner) -> None:
    environment = {"_READER_EDGE_COMPLETE": "bash_complete", "COMP_LINE": "reader-edge run ./mo", "COMP_WORDBREAKS": ""}
    assert runner.invoke(main, prog_name="reader-edge", env=environment).stdout == "file,./mo\n"


@pytest.mark.parametrize(("shell", "startup"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", None)])
def test_one_command_installs_it_once(runner: CliRunner, home: Path, shell: str, startup: str | None) -> None:
    if startup:
        (home / startup).write_text("alias ll='ls -l'")
    for _ in range(2):
        result = runner.invoke(main, ["completion", shell, "--install"])
        assert result.exit_code == 0, result.output
    scripts = [
        path for path in home.rglob("*") if path.is_file() and "reader-edge" in str(path) and path.name != startup
    ]
    assert len(scripts) == 1
    assert runner.invoke(main, ["completion", shell]).stdout == scripts[0].read_text()
    if startup:
        first, second = (home / startup).read_text().splitlines()
        assert first == "alias ll='ls -l'"
        assert second == f". '{scripts[0]}' # completion of reader-edge"


def test_the_shell_is_the_one_that_runs(runner: CliRunner, home: Path) -> None:
    assert "compdef" in runner.invoke(main, ["completion"], env={"SHELL": "/usr/bin/zsh"}).stdout
    result = runner.invoke(main, ["completion"], env={"SHELL": "/bin/sh"})
    assert result.exit_code == 2
    assert "give one of them" in result.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("word", "completions"),
    [("smollm2:13", "135m\n"), ("smollm2", "smollm2:135m\nsmollm2:360m\nsmollm2:1.7b\nsmollm2\\ package\n")],
)
def test_bash_completes_names_with_colons(runner: CliRunner, home: Path, word: str, completions: str) -> None:
    (home / "smollm2 package").mkdir()
    script = home / "completion"
    script.write_text(runner.invoke(main, ["completion", "bash"]).stdout)
    program = home / "reader-edge"
    program.write_text(f"#!{sys.executable}\nfrom reader_edge.__main__ import main\nmain()\n")
    program.chmod(0o755)
    sent = f"""
        . {script}
        COMP_LINE='reader-edge run {word}' COMP_POINT={16 + len(word)}
        function_name=$(complete -p reader-edge | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        $function_name reader-edge
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = os.environ | {
        "PATH": f"{home}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    bash = [str(shutil.which("bash")), "--norc", "-c", sent]
    result = subprocess.run(bash, env=environment, cwd=home, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout == completions, result.stderr
