"""A simulated device and server beside measured ones."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("simpy", reason="fleets need it: pip install 'reader-edge[fleet]'")

from benchmarks.fleet import validate
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.validate import Run, simulated_s

TIMES = PassTimes.read()
FIELDS = {"past": 512, "num_tokens": 100, "num_passes": 40, "num_nodes": 320}


def run(way: str, round_trip_s: float, seconds: float = 1.0) -> Run:
    return Run.of({"way": way, "round_trip_s": round_trip_s, "seconds": seconds, **FIELDS})


@pytest.mark.parametrize("round_trip_s", [0.0, 0.01, 0.2])
def test_a_way_takes_its_passes_and_its_trips(round_trip_s: float) -> None:
    passes_s = 40 * TIMES.seconds(8, 512)
    assert simulated_s(run("server alone", round_trip_s), TIMES) == pytest.approx(passes_s + round_trip_s, abs=1e-4)
    assert simulated_s(run("hints", round_trip_s), TIMES) == pytest.approx(passes_s + round_trip_s, abs=1e-4)
    lock_step_s = passes_s + 40 * round_trip_s
    assert simulated_s(run("lock-step", round_trip_s), TIMES) == pytest.approx(lock_step_s, abs=1e-3)


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: object) -> None:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps({"runs": runs}))
    monkeypatch.setattr(sys, "argv", ["validate", str(file)])
    validate.main()


def test_times_within_the_limit_pass_and_others_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = simulated_s(run("lock-step", 0.04), TIMES)
    fields = {"way": "lock-step", "round_trip_s": 0.04, **FIELDS}
    told(tmp_path, monkeypatch, [{**fields, "seconds": seconds * 1.1}])
    assert "| lock-step | 40 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        told(tmp_path, monkeypatch, [{**fields, "seconds": seconds * 1.3}])


@pytest.mark.parametrize("wrong", [{"way": "paper?"}, {"num_passes": 0}, {"num_passes": 101}, {"seconds": "x"}])
def test_what_was_not_measured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        told(tmp_path, monkeypatch, [{"way": "hints", "round_trip_s": 0.0, "seconds": 1.0, **FIELDS, **wrong}])
    assert "holds no measured runs" in capsys.readouterr().err
