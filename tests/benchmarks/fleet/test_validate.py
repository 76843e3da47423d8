"""A simulated device and server beside measured ones."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("simpy", reason="fleets need it: pip install 'reader-edge[fleet]'")

from benchmarks.fleet import validate
from benchmarks.fleet.validate import Run, compared, read_runs, simulated_s

RUN = Run("lock-step", "known", 0, 40.0, num_tokens=100, num_steps=40, seconds=2.0)


@pytest.mark.parametrize("round_trip_ms", [0.0, 10.0, 200.0])
def test_a_way_takes_its_steps_and_its_trips(round_trip_ms: float) -> None:
    trip_s = round_trip_ms / 1000
    for way in ("server alone", "hints"):
        seconds = simulated_s(replace(RUN, way=way, round_trip_ms=round_trip_ms), step_s=0.01)
        assert seconds == pytest.approx(0.4 + trip_s, abs=1e-4)
    seconds = simulated_s(replace(RUN, round_trip_ms=round_trip_ms), step_s=0.01)
    assert seconds == pytest.approx(0.4 + 41 * trip_s, abs=1e-3)  # the first token takes a trip and no step


def written(tmp_path: Path, runs: object) -> Path:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps(runs))
    return file


def test_steps_are_those_without_a_link_and_of_the_fastest_answer(tmp_path: Path) -> None:
    near = replace(RUN, round_trip_ms=0.0, num_steps=20, seconds=0.4)
    runs = [asdict(run) for run in (near, replace(near, seconds=0.9), RUN, replace(RUN, way="optimistic"))]
    ((run, seconds),) = compared(read_runs(written(tmp_path, runs)))
    assert run == RUN
    assert seconds == pytest.approx(0.4 + 41 * 0.04, abs=1e-3)  # in wider or narrower trees
    hints = [replace(each, way="hints") for each in (near, RUN)]
    ((run, seconds),) = compared(hints)
    assert seconds == pytest.approx(40 * 0.02 + 0.04, abs=1e-3)


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: object) -> None:
    monkeypatch.setattr(sys, "argv", ["validate", str(written(tmp_path, runs))])
    validate.main()


def test_times_within_the_limit_pass_and_others_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    near = replace(RUN, round_trip_ms=0.0, seconds=0.4)
    told(tmp_path, monkeypatch, [asdict(near), asdict(replace(RUN, seconds=2.2))])
    assert "| lock-step | known | 40 | 2.200 | 2.0" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        told(tmp_path, monkeypatch, [asdict(near), asdict(replace(RUN, seconds=2.5))])


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([{"way": "hints"}], "holds no measured answers"),
        ([{**asdict(RUN), "num_steps": 101}], "no answer takes so many steps"),
        ([asdict(RUN)], "has one round trip"),
    ],
)
def test_what_was_not_measured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runs: object, words: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        told(tmp_path, monkeypatch, runs)
    assert words in capsys.readouterr().err
