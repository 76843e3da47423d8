"""Where the folder of lossy rules was deleted, `reader-edge lossy` says so, and nothing else needs it."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main


@pytest.mark.parametrize(
    "command", [["run", "-p", "# tar"], ["bench"], ["forecast"], ["train-judge", "demo", "-o", "a.judge"]]
)
def test_its_commands_end_in_a_sentence(command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    wing = "reader_edge_runtime.lossy"
    for name in [wing, *(name for name in sys.modules if name.startswith(f"{wing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    told = CliRunner().invoke(main, ["lossy", *command], catch_exceptions=False)
    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr.startswith("Error: The folder of lossy rules, reader_edge_runtime/lossy, is missing")
    assert CliRunner().invoke(main, ["lossy", command[0], "--help"], catch_exceptions=False).exit_code == 0


def test_what_else_is_missing_is_no_matter_of_that_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reader_edge.model_source", None)
    with pytest.raises(ModuleNotFoundError, match=r"reader_edge\.model_source"):
        CliRunner().invoke(main, ["lossy", "run", "-p", "# tar"], catch_exceptions=False)
