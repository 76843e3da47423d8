"""`reader-edge forget`: past answers are erased, other files left alone."""

from pathlib import Path

from click.testing import CliRunner

from reader_edge.cli import main


def test_a_history_that_run_made_is_erased(runner: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "past"
    assert (
        runner.invoke(main, ["run", "-p", "# tar", "-n", "4", "--no-calibrate", "--history", str(file)]).exit_code == 0
    )
    assert file.stat().st_size > 64
    result = runner.invoke(main, ["forget", str(file)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert not file.exists()


def test_another_file_is_left_alone(runner: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "thesis.txt"
    file.write_text("All is well.")
    result = runner.invoke(main, ["forget", str(file)])
    assert result.exit_code == 1
    assert "not a history file" in result.stderr
    assert file.read_text() == "All is well."


def test_a_missing_file_exits_2(runner: CliRunner, tmp_path: Path) -> None:
    assert runner.invoke(main, ["forget", str(tmp_path / "none")]).exit_code == 2
