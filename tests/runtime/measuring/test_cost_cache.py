"""Measured costs and the probe's verdict are kept for this machine and package alone, and made again when no good."""

import asyncio
import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring import cost_cache, width_cache
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.measuring.width_cache import load_or_settle, verdict_path
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.package.manifest import GRAPH_NAME, SUCCESSORS_NAME, FileEntry
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target
from tests.fake_target import FakeTarget, make_manifest
from tests.wrong_fields import wrong_fields


@pytest.fixture(scope="module")
def target(demo_folder: Path) -> HostTarget:
    return HostTarget.open(ModelPackage.open(demo_folder))


@pytest.fixture
def num_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Batch sizes measured, by a stand-in that takes no time; the cache is a folder of the test."""
    measured: list[int] = []

    def measure(target: HostTarget, batch_size: int, on_progress: object = None) -> PassCost:
        measured.append(batch_size)
        seconds = np.array([[1.0, 2.0], [3.0, 4.0]])
        return PassCost(batch_size, (10, 20), (1, 4), seconds, row_s=0.25, padding_share=0.5, text_s=(0.5, 0.25))

    monkeypatch.setattr(cost_cache, "measure_pass_cost", measure)
    monkeypatch.setattr(cost_cache, "cache_folder", lambda: tmp_path / "reader-edge")
    return measured


def test_second_load_reads_what_the_first_measured(target: HostTarget, num_measured: list[int]) -> None:
    first = cost_cache.load_or_measure(target, threads=2, batch_size=4)
    second = cost_cache.load_or_measure(target, threads=2, batch_size=4)
    assert num_measured == [4]
    assert (first.batch_size, first.pasts, first.widths) == (second.batch_size, second.pasts, second.widths)
    np.testing.assert_array_equal(first.seconds, second.seconds)
    assert first.row_s == second.row_s == 0.25
    assert first.padding_share == second.padding_share == 0.5
    assert first.text_s == second.text_s == (0.5, 0.25)
    cost_cache.load_or_measure(target, threads=2, batch_size=4, is_redone=True)
    assert num_measured == [4, 4]


@pytest.mark.parametrize(
    ("spreads", "seconds", "is_in_doubt"),
    [
        ([0.02], [4.0], False),
        ([0.5, 0.02], [4.0, 3.0], False),
        ([0.5, 0.5], [4.0, 3.9], False),  # they agree
        ([0.5, 0.5, 0.5], [4.0, 9.0, 3.0], True),
    ],
)
def test_a_cost_in_doubt_is_measured_again_and_the_lesser_times_are_kept(
    spreads: list[float],
    seconds: list[float],
    is_in_doubt: bool,
    target: HostTarget,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """At the next starts, until there is no doubt, or three times."""
    made = iter(zip(spreads, seconds, strict=True))

    def measure(target: Target, batch_size: int, on_progress: object = None) -> PassCost:
        spread, each = next(made)
        return PassCost(batch_size, (10,), (1,), np.array([[each]]), spread=spread)

    monkeypatch.setattr(cost_cache, "measure_pass_cost", measure)
    monkeypatch.setattr(cost_cache, "cache_folder", lambda: tmp_path / "reader-edge")
    caplog.set_level(logging.INFO, "reader_edge")
    costs = [cost_cache.load_or_measure(target, 2, 1) for _ in range(5)]
    assert sum("other work ran" in line for line in caplog.messages) == len(spreads) - 1
    assert next(made, None) is None
    assert costs[-1].seconds.tolist() == [[min(seconds)]]
    assert (costs[-1].num_measured, costs[-1].is_in_doubt) == (len(spreads), is_in_doubt)


def test_the_log_says_what_measuring_took_and_where_it_is_kept(
    target: HostTarget, num_measured: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reader_edge")
    cost_cache.load_or_measure(target, threads=2, batch_size=1)
    (line,) = caplog.messages
    assert line.startswith("Measured passes in 0.0 s; kept in '")
    assert str(cost_cache.cost_path(target, 2, 1)) in line
    cost_cache.load_or_measure(target, threads=2, batch_size=1)
    assert len(caplog.messages) == 1


def test_another_thread_count_or_batch_size_is_measured_by_itself(target: HostTarget, num_measured: list[int]) -> None:
    cost_cache.load_or_measure(target, threads=1, batch_size=1)
    cost_cache.load_or_measure(target, threads=2, batch_size=1)
    cost_cache.load_or_measure(target, threads=2, batch_size=4)
    assert num_measured == [1, 1, 4]


def test_times_are_kept_by_what_they_depend_on_alone(target: HostTarget) -> None:
    others = [replace_facts(target, *target.pass_facts, gpu) for gpu in ("one GPU", "another GPU")]
    others += [target.with_min_rows(2), HostTarget(target.session, target.manifest, is_native=not target.is_native)]
    assert len({cost_cache.cost_path(each, 1, 1) for each in (target, *others)}) == 5
    files = {**target.manifest.files, SUCCESSORS_NAME: FileEntry(1, "ab" * 32)}
    tuned = HostTarget(target.session, replace(target.manifest, files=files), target.is_native)
    assert cost_cache.cost_path(tuned, 1, 1) == cost_cache.cost_path(target, 1, 1)


def replace_facts(target: HostTarget, *facts: str) -> Target:
    fake = FakeTarget(target.manifest)
    fake.pass_facts = facts
    return fake


@pytest.mark.long
def test_an_outrun_cost_is_measured_again(demo_folder: Path, target: HostTarget, num_measured: list[int]) -> None:
    for num_starts in (1, 2):  # the stand-in's passes take seconds
        engine = Engine.load(demo_folder, EngineConfig(threads=1, is_probed=False))
        assert len(num_measured) == num_starts
        engine.generate("# tar", GenerationConfig(max_tokens=40, ignores_eos=True))
    cost_cache.forget_cost(target, threads=1, batch_size=1)  # what is not there is no error


@pytest.mark.usefixtures("two_cores")
def test_no_batch_and_no_server_measures_more_than_the_load(demo_folder: Path, num_measured: list[int]) -> None:
    engine = Engine.load(demo_folder, EngineConfig(threads=2, is_probed=False))
    assert num_measured == [1]
    config = GenerationConfig(max_tokens=8)
    together = engine.generate_batch(["# tar", "# curl", "# git"], config)

    async def served() -> str:
        async with AsyncEngine(engine) as serving:
            return (await serving.generate("# tar", config)).text

    assert asyncio.run(served()) == together[0].text
    assert num_measured == [1]
    assert engine.decoder.planner.times.is_measured


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"pasts": [10], "widths": [1, 1], "seconds": [[1, 1]], "row_s": 0}',
        '{"pasts": [10], "widths": [1, 2], "seconds": [[1]], "row_s": 0}',
        '{"pasts": [10], "widths": [1], "seconds": [], "row_s": 0}',
        '{"pasts": [10], "widths": [1], "seconds": [[1e308]], "row_s": 0}',
        " " * ((1 << 20) + 1),
    ],
)
def test_an_unusable_file_is_measured_again(content: str, target: HostTarget, num_measured: list[int]) -> None:
    path = cost_cache.cost_path(target, threads=2, batch_size=1)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    cost_cache.load_or_measure(target, threads=2, batch_size=1)
    assert num_measured == [1]


def test_no_field_is_believed_that_its_class_does_not_take(tmp_path: Path) -> None:
    right: dict[str, object] = {
        "pasts": [10, 20],
        "widths": [1, 2],
        "seconds": [[1.0, 2.0]] * 2,
        "row_s": 0.5,
        "padding_share": 0.5,
    }
    right |= {"text_s": [0.1, 0.2], "spread": 0.1, "num_measured": 1}
    (tmp_path / "cost").write_text(json.dumps(right))
    assert cost_cache._read(tmp_path / "cost", 1) is not None
    for _, fields in wrong_fields(cost_cache._KeptCost, right):
        (tmp_path / "cost").write_text(json.dumps(fields))
        assert cost_cache._read(tmp_path / "cost", 1) is None


def test_a_device_is_not_read(target: HostTarget, num_measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    path = cost_cache.cost_path(target, threads=2, batch_size=1)
    path.parent.mkdir(parents=True)
    path.symlink_to(os.devnull)  # others never end
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("read"))
    cost_cache.load_or_measure(target, threads=2, batch_size=1)
    assert num_measured == [1]


def test_cache_that_cannot_be_written_is_no_error(
    target: HostTarget, num_measured: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(cost_cache, "cache_folder", lambda: blocked / "reader-edge")
    assert cost_cache.load_or_measure(target, threads=2, batch_size=1)


REPORT = WidthReport(16, 4, 0.25, 8)


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Target]:
    """Targets that were probed, by a stand-in that finds that passes need two rows."""
    targets: list[Target] = []

    def settle(fake_target_of_six: Target) -> tuple[Target, WidthReport]:
        targets.append(fake_target_of_six)
        return fake_target_of_six.with_min_rows(2), REPORT

    monkeypatch.setattr(width_cache, "settle_width", settle)
    monkeypatch.setattr(width_cache, "cache_folder", lambda: tmp_path / "reader-edge")
    return targets


@pytest.fixture
def fake_target_of_six() -> FakeTarget:
    return FakeTarget(make_manifest(6))


def test_the_verdict_of_the_first_start_is_read(fake_target_of_six: FakeTarget, probed: list[Target]) -> None:
    first = load_or_settle(fake_target_of_six, 2)
    second = load_or_settle(fake_target_of_six, 2)
    assert probed == [fake_target_of_six]
    assert first[1] == second[1] == REPORT
    assert first[0].min_rows == second[0].min_rows == 2


def test_a_verdict_may_stay_unwritten(fake_target_of_six: FakeTarget, probed: list[Target], tmp_path: Path) -> None:
    (tmp_path / "reader-edge").write_text("a file where the folder would be")
    assert [load_or_settle(fake_target_of_six, 2)[1], load_or_settle(fake_target_of_six, 2)[1]] == [REPORT, REPORT]
    assert len(probed) == 2


@pytest.mark.parametrize(
    ("is_called_back", "num_bytes", "level"),
    [(False, 1 << 31, logging.WARNING), (True, 1 << 31, logging.INFO), (False, 1 << 20, logging.INFO)],
)
def test_a_probe_is_announced_before_it_begins_and_only_then(
    is_called_back: bool, num_bytes: int, level: int, probed: list[Target], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reader_edge")
    calls: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        assert not probed
        calls.append((done, total))

    fake_target_of_six = FakeTarget(replace(make_manifest(6), files={GRAPH_NAME: FileEntry(num_bytes, "ab" * 32)}))
    for _ in range(2):
        load_or_settle(fake_target_of_six, 2, note if is_called_back else None)
    (line,) = caplog.records
    assert line.levelno == level
    assert calls == [(0, 1)] * is_called_back


def test_other_threads_kernels_or_weights_are_probed(fake_target_of_six: FakeTarget, probed: list[Target]) -> None:
    files = {**fake_target_of_six.manifest.files, GRAPH_NAME: FileEntry(0, "ab" * 32)}
    others = [FakeTarget(replace(fake_target_of_six.manifest, files=files)), FakeTarget(fake_target_of_six.manifest)]
    others[1].pass_facts = ("other kernels",)
    load_or_settle(fake_target_of_six, 2)
    load_or_settle(fake_target_of_six, 1)
    for other in others:
        load_or_settle(other, 2)
    assert probed == [fake_target_of_six, fake_target_of_six, *others]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"num_rows": 16, "num_equal": 16, "max_difference": 0.0, "min_rows": 1}',
        '{"num_rows": 4, "num_equal": 16, "max_difference": 0.0, "min_rows": 1, "max_rows": null}',
        '{"num_rows": 16, "num_equal": 16, "max_difference": NaN, "min_rows": 1, "max_rows": null}',
        '{"num_rows": 16, "num_equal": 16, "max_difference": 0.0, "min_rows": 0, "max_rows": null}',
        '{"num_rows": 16, "num_equal": 16, "max_difference": 0.0, "min_rows": 1, "max_rows": 0}',
        "9" * 5000,
    ],
)
def test_a_wrong_verdict_is_probed_over(text: str, fake_target_of_six: FakeTarget, probed: list[Target]) -> None:
    path = verdict_path(fake_target_of_six, 2)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert load_or_settle(fake_target_of_six, 2)[1] == REPORT
    assert load_or_settle(fake_target_of_six, 2)[1] == REPORT
    assert len(probed) == 1
