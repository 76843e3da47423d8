"""`reader-edge bench cost`: it measures once, and shows what planning goes by."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reader_edge.cli import main
from reader_edge_runtime.measuring import pass_cost


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pass_cost, "_MOST_SPREAD", math.inf)  # tests run beside others


def cost(runner: CliRunner, *arguments: str) -> Result:
    result = runner.invoke(main, ["bench", "cost", "--threads", "1", *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_what_was_measured_is_shown_again_until_it_is_to_be_redone(runner: CliRunner) -> None:
    first, again, redone = (json.loads(cost(runner, *more, "--json").stdout) for more in ((), (), ("--redo",)))
    assert first == again != redone
    assert len(first["seconds"]) == len(first["pasts"])
    assert all(len(each) == len(first["widths"]) for each in first["seconds"])
    assert all(second > 0 for each in first["seconds"] for second in each)


def test_a_table_has_a_line_for_each_number_of_nodes(runner: CliRunner) -> None:
    shown = cost(runner, "--batch", "2").output
    measured = json.loads(cost(runner, "--batch", "2", "--json").stdout)
    assert "2 in a batch" in shown
    lines = [line.replace("│", " ").split()[:1] for line in shown.splitlines()]
    assert [line for line in lines if line and line[0].isdigit()] == [[str(width)] for width in measured["widths"]]
