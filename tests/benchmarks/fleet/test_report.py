"""The page of a fleet, and outcomes that are kept."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("scipy", reason="fleets need it: pip install 'reader-edge[fleet]'")
pytest.importorskip("simpy", reason="fleets need it: pip install 'reader-edge[fleet]'")

from benchmarks.fleet import __main__ as fleet
from benchmarks.fleet.comparison import Outcome
from benchmarks.fleet.outcome_store import OutcomeStore
from benchmarks.fleet.report import interval, saved


def test_an_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert half == pytest.approx(3.182446 * 1.290994 / 2, rel=1e-5)


def test_savings_are_of_the_same_fleet() -> None:
    def outcomes(*means_s: float) -> list[Outcome]:
        return [Outcome(mean_s, mean_s, 0.0, 0.0) for mean_s in means_s]

    cells = {("way", 30, 4, "random"): outcomes(2.0, 4.0), ("way", 30, 4, "solver, best shares"): outcomes(1.0, 2.0)}
    assert saved(cells, "way", "random") == [(0.5, 0.0)]


def test_a_run_that_was_cut_short_goes_on_and_other_seeds_are_refused(tmp_path: Path) -> None:
    store = OutcomeStore(tmp_path / "kept.json", 2)
    assert not store.has("hints", 30, 4)
    store.add({("hints", 30, 4, "random"): [Outcome(1.0, 2.0, 3.0, 4.0)] * 2})
    again = OutcomeStore(tmp_path / "kept.json", 2)
    assert again.outcomes == store.outcomes
    assert again.has("hints", 30, 4)
    with pytest.raises(ValueError, match="outcomes of seeds 2, not 3"):
        OutcomeStore(tmp_path / "kept.json", 3)


def test_the_page_has_every_size_way_and_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="plots need it: pip install 'reader-edge[plot]'")
    arguments = ["--users", "4,6", "--servers", "2", "--seeds", "2", "--ways", "hints;paper"]
    monkeypatch.setattr(sys, "argv", ["fleet", *arguments, "--out", str(tmp_path / "F")])
    monkeypatch.setattr("benchmarks.fleet.comparison.SMALL", (4, 2))
    fleet.main()
    page = (tmp_path / "F.md").read_text()
    for words in ("## Hints", "## Paper", "| 4 on 2 |", "| 6 on 2 |", "28.0 %", "23.7 %", "solver, best shares"):
        assert words in page
    assert (tmp_path / "F.svg").read_text().startswith("<?xml")
