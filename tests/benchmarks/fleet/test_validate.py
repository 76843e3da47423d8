"""A simulated device and server beside measured ones."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("simpy", reason="fleets need it: pip install 'reader-edge[fleet]'")

from benchmarks.fleet import validate
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.validate import Run, compared, predicted, read_runs, simulated_s
from reader_edge_runtime.measuring.pass_cost import PassCost

RUN = Run("lock-step", "known", 0, 40.0, num_tokens=100, num_steps=40, num_from_device=0, seconds=2.0)


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


def test_an_answer_computes_what_the_fastest_without_a_link_does(tmp_path: Path) -> None:
    near = replace(RUN, round_trip_ms=0.0, num_steps=20, seconds=0.4)
    runs = [asdict(run) for run in (near, replace(near, seconds=0.9), RUN, replace(RUN, way="optimistic"))]
    ((run, seconds),) = compared(read_runs(written(tmp_path, runs)))
    assert run == RUN
    assert seconds == pytest.approx(0.4 + 41 * 0.04, abs=1e-3)  # in wider or narrower trees
    alone = [replace(each, way="server alone") for each in (near, RUN)]
    ((_, seconds),) = compared(alone)
    assert seconds == pytest.approx(40 * 0.02 + 0.04, abs=1e-3)


@pytest.mark.parametrize(("near_s", "device_s"), [(0.4, 0.0025), (0.1, 0.0), (1.5, 0.01)])
def test_hints_that_come_late_leave_their_tokens_to_the_server(near_s: float, device_s: float) -> None:
    alone = replace(RUN, way="server alone", round_trip_ms=0.0, seconds=1.0)  # 10 ms a token
    near = replace(RUN, way="hints", round_trip_ms=0.0, num_from_device=80, seconds=near_s)
    far = replace(RUN, way="hints", num_from_device=20)
    ((run, seconds),) = compared([alone, near, far])
    assert run == far
    assert seconds == pytest.approx(20 * device_s + 80 * 0.01 + 0.04, abs=1e-3)
    with pytest.raises(ValueError, match="no answer of 'server alone'"):
        compared([near, far])


def test_answers_are_predicted_from_what_was_recorded_of_others_and_their_length_alone() -> None:
    """A tree of 8 pays where a step has a trip, one of 2 where it has none."""
    times = PassTimes(PassCost(1, (1,), (1, 2, 4, 8, 16, 32), np.array([[10.0, 10, 20, 40, 80, 160]]) / 1000))
    emitted = {is_device: {1: 1.0, 2: 2.0, 4: 2.0, 8: 4.0, 16: 4.0, 32: 4.0} for is_device in (True, False)}
    unknown = replace(RUN, kind="unknown", num_steps=7, seconds=1.0)
    runs = [unknown, replace(unknown, num_steps=90, seconds=9.0), RUN, replace(unknown, way="server alone")]
    assert [run for run, _ in predicted(runs, times, emitted)] == [runs[0], runs[1], runs[3]]
    seconds = [each for _, each in predicted(runs, times, emitted)]
    assert seconds == pytest.approx([25 * 0.04 + 26 * 0.04] * 2 + [50 * 0.01 + 0.04], abs=1e-3)


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: object) -> None:
    monkeypatch.setattr(sys, "argv", ["validate", str(written(tmp_path, runs))])
    validate.main()


def test_times_within_the_limit_pass_and_others_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    near = replace(RUN, round_trip_ms=0.0, seconds=0.4)
    told(tmp_path, monkeypatch, [asdict(near), asdict(replace(RUN, seconds=2.2))])
    assert "| lock-step | known | 40 | 2.200 | 2.0" in capsys.readouterr().out
    answer = replace(RUN, way="server alone", kind="unknown")
    told(tmp_path, monkeypatch, [asdict(replace(answer, round_trip_ms=0.0)), asdict(answer)])
    assert capsys.readouterr().out.count("| server alone | unknown | 40 |") == 2  # simulated, and predicted
    with pytest.raises(SystemExit, match="1"):
        told(tmp_path, monkeypatch, [asdict(near), asdict(replace(RUN, seconds=2.5))])


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([{"way": "hints"}], "holds no measured answers"),
        ([{**asdict(RUN), "num_steps": 101}], "no answer takes so many steps"),
        ([{**asdict(RUN), "num_from_device": 101}], "no answer takes so many steps"),
        ([asdict(RUN)], "has one round trip"),
    ],
)
def test_what_was_not_measured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runs: object, words: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        told(tmp_path, monkeypatch, runs)
    assert words in capsys.readouterr().err
