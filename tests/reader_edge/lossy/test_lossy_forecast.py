"""`reader-edge lossy forecast`: it says that it is lossy, and by how much."""

from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from reader_edge.cli import main
from reader_edge.series.table import read_table, write_table


def _forecast(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["lossy", "forecast", *arguments], catch_exceptions=False)


def test_what_drafts_changed_is_told_beside_the_means() -> None:
    done = _forecast("--horizon", "40", "--tolerance", "9", "--drafts", "own")
    assert done.exit_code == 0
    assert "Lossy (tolerance 9): " in done.stderr
    assert "of 5 patches are not the model's mean, " in done.stderr
    assert " deviations off on average" in done.stderr
    header, *rows = done.stdout.splitlines()
    assert header == "time,series,mean"
    assert len(rows) == 40


def test_without_tolerance_no_patch_is_off(tmp_path: Path) -> None:
    table, out = tmp_path / "waves.csv", tmp_path / "means.parquet"
    write_table({"waves": np.sin(np.arange(300) / 9).tolist(), "names": ["a"] * 300}, table)
    done = _forecast(str(table), "--horizon", "9", "--tolerance", "0", "-o", str(out))
    assert (done.exit_code, done.stdout) == (0, f"{out}\n")
    assert "Left out, since they hold no numbers: names." in done.stderr
    assert "Lossy (tolerance 0): 0 of 2 patches are not the model's mean; passes: 1 behind" in done.stderr
    assert len(read_table(out, None, ()).series["mean"]) == 9


def test_a_horizon_of_one_patch_needs_no_pass_but_the_first() -> None:
    done = _forecast("--horizon", "4", "--column", "electricity")
    told = "passes: 0 behind those that read the series, which tell the first patch."
    assert (done.exit_code, told in done.stderr, len(done.stdout.splitlines())) == (0, True, 5), done.stderr


def test_a_tolerance_below_nothing_is_refused() -> None:
    done = CliRunner().invoke(main, ["lossy", "forecast", "--tolerance", "-1"])
    assert done.exit_code == 2
    assert "tolerance" in done.stderr
