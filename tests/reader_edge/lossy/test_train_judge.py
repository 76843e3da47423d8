"""`reader-edge lossy train-judge`: it writes a judge where that knows more than the gap, and says so where not."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reader_edge.cli import main
from reader_edge.lossy.mining import Mined
from reader_edge_runtime import Engine
from reader_edge_runtime.lossy.judge_figures import num_figures


def trained(out: Path, *arguments: str, model: str = "models/demo/package") -> Result:
    command = ["lossy", "train-judge", model, "-o", str(out), "--tasks", "5", "--no-calibrate", *arguments]
    return CliRunner().invoke(main, command)


@pytest.fixture
def found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Mined]:
    """What mining finds, of the demo's figures: the second one tells whether a token matters."""
    found: list[Mined] = []
    random, size = np.random.default_rng(0), num_figures(engine.package.manifest)
    for number in range(120):
        figures = random.standard_normal(size)
        found.append(Mined(number, ("copy", "json")[number % 2], figures, bool(figures[1] > 0)))
    monkeypatch.setattr("reader_edge.lossy.mining.mined", lambda *_: found)
    return found


def test_a_judge_that_knows_more_is_written_and_taken(demo_folder: Path, tmp_path: Path, found: list[Mined]) -> None:
    out = tmp_path / "my.judge"
    result = trained(out, model=str(demo_folder))
    assert result.exit_code == 0
    assert result.stdout == f"{out}\n"
    assert "ranks tokens better than the gap alone" in result.stderr
    assert "kind json" in result.stderr
    refused = trained(out, model=str(demo_folder))
    assert refused.exit_code == 2
    assert "exists already: choose another name or replace it with --force." in refused.stderr
    judged = ["--rule", "judge", "--judge", str(out), "--threshold", "0.3", "--no-calibrate", "-p", "# tar", "-n", "8"]
    told = CliRunner().invoke(main, ["lossy", "run", str(demo_folder), *judged])
    assert f"Lossy (judge: judge {out}, threshold 0.3)" in told.stderr.replace("\n", "")
    tries = ["--try", f"judge:{out}:0.1,0.3", "--tasks", "5", "--rounds", "1", "--no-calibrate", "--json"]
    benched = CliRunner().invoke(main, ["lossy", "bench", str(demo_folder), *tries])
    assert f'"judge:{out}:0.1"' in benched.stdout
    assert f'"judge:{out}:0.3"' in benched.stdout


def test_a_file_that_appeared_meanwhile_stays_and_so_does_the_judge(
    demo_folder: Path, tmp_path: Path, found: list[Mined], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "my.judge"

    def mined(*_: object) -> list[Mined]:
        out.write_text("mine")
        return found

    monkeypatch.setattr("reader_edge.lossy.mining.mined", mined)
    result = trained(out, model=str(demo_folder))
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'my-2.judge'}\n")
    assert f"'{out}' appeared meanwhile" in result.stderr
    assert (out.read_text(), (tmp_path / "my-2.judge").is_file()) == ("mine", True)


def test_one_that_does_not_is_written_only_by_force(demo_folder: Path, tmp_path: Path, found: list[Mined]) -> None:
    for each in found:
        each.figures[0] = each.matters  # of the gap nothing is left to learn
    out = tmp_path / "my.judge"
    result = trained(out, model=str(demo_folder))
    assert result.exit_code == 1
    assert "no better than the gap alone" in result.stderr
    assert "Nothing is written: use `--rule relaxed`, or --force." in result.stderr
    assert not out.exists()
    assert trained(out, "--force", model=str(demo_folder)).exit_code == 0
    assert out.is_file()


def test_a_model_that_can_do_none_of_the_tasks_teaches_nothing(demo_folder: Path, tmp_path: Path) -> None:
    result = trained(tmp_path / "my.judge", model=str(demo_folder))
    assert result.exit_code == 1
    assert "tokens change the final answer, which tells nothing" in result.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
@pytest.mark.parametrize("name", ["nowhere/my.judge", "pipe", "/dev/full"])
def test_a_place_where_no_judge_can_be_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("reader_edge.model_source.load_engine", pytest.fail)
    refused = trained(tmp_path / name, "--force")
    assert refused.exit_code == 1
    assert f"Error: '{tmp_path / name}' cannot be written" in refused.stderr
    assert refused.stderr.endswith("name a file in a folder that can be written.\n")
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_disk_without_room_for_a_judge_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader_edge.model_source.load_engine", pytest.fail)

    def full(path: Path, num_bytes: int = 0) -> None:
        if num_bytes > 8 * 1024:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("reader_edge_runtime.atomic_file.check_writable", full)
    refused = trained(tmp_path / "my.judge")
    assert refused.exit_code == 1
    assert refused.stderr.endswith("(No space left on device): free some space, then train it again.\n")


def test_the_rule_needs_a_judge(demo_folder: Path, tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["lossy", "run", str(demo_folder), "--rule", "judge", "-p", "# tar"])
    assert refused.exit_code == 2
    assert "--rule judge needs --judge FILE" in refused.stderr
