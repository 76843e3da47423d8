"""The kept verdict of the width probe: used for what it was made with, and for nothing else."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_runtime.measuring import width_cache
from reader_edge_runtime.measuring.width_cache import load_or_settle, verdict_path
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.package.manifest import GRAPH_NAME, FileEntry
from reader_edge_runtime.target import Target
from tests.fake_target import FakeTarget, make_manifest

REPORT = WidthReport(16, 4, 0.25, 8)


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Target]:
    """Targets that were probed, by a stand-in that finds that passes need two rows."""
    targets: list[Target] = []

    def settle(target: Target) -> tuple[Target, WidthReport]:
        targets.append(target)
        return target.with_min_rows(2), REPORT

    monkeypatch.setattr(width_cache, "settle_width", settle)
    monkeypatch.setattr(width_cache, "cache_folder", lambda: tmp_path / "reader-edge")
    return targets


@pytest.fixture
def target() -> FakeTarget:
    return FakeTarget(make_manifest(6))


def test_the_second_start_reads_what_the_first_found(target: FakeTarget, probed: list[Target]) -> None:
    first = load_or_settle(target, 2)
    second = load_or_settle(target, 2)
    assert probed == [target]
    assert first[1] == second[1] == REPORT
    assert first[0].min_rows == second[0].min_rows == 2


@pytest.mark.parametrize(
    ("is_called_back", "num_bytes", "level"),
    [(False, 1 << 31, logging.WARNING), (True, 1 << 31, logging.INFO), (False, 1 << 20, logging.INFO)],
)
def test_a_probe_is_told_before_it_begins_and_only_then(
    is_called_back: bool, num_bytes: int, level: int, probed: list[Target], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reader_edge")
    calls: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        assert not probed
        calls.append((done, total))

    target = FakeTarget(replace(make_manifest(6), files={GRAPH_NAME: FileEntry(num_bytes, "ab" * 32)}))
    for _ in range(2):
        load_or_settle(target, 2, note if is_called_back else None)
    (line,) = caplog.records
    assert line.levelno == level
    assert calls == [(0, 1)] * is_called_back


def test_other_threads_kernels_or_weights_are_probed(target: FakeTarget, probed: list[Target]) -> None:
    files = {**target.manifest.files, GRAPH_NAME: FileEntry(0, "ab" * 32)}
    others = [FakeTarget(replace(target.manifest, files=files)), FakeTarget(target.manifest)]
    others[1].pass_facts = ("other kernels",)
    load_or_settle(target, 2)
    load_or_settle(target, 1)
    for other in others:
        load_or_settle(other, 2)
    assert probed == [target, target, *others]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"num_rows": 16, "num_equal": 16}',
        '{"num_rows": 16, "num_equal": 16, "max_difference": 0.0, "min_rows": 1}',
        '{"num_rows": 4, "num_equal": 16, "max_difference": 0.0, "min_rows": 1, "max_rows": null}',
        '{"num_rows": 16, "num_equal": 16, "max_difference": NaN, "min_rows": 1, "max_rows": null}',
        '{"num_rows": 16, "num_equal": 16, "max_difference": 0.0, "min_rows": 0, "max_rows": null}',
        '{"num_rows": 16, "num_equal": 16, "max_difference": 0.0, "min_rows": 1, "max_rows": 0}',
        "9" * 5000,
    ],
)
def test_a_file_that_is_no_verdict_is_probed_over(text: str, target: FakeTarget, probed: list[Target]) -> None:
    path = verdict_path(target, 2)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert load_or_settle(target, 2)[1] == REPORT
    assert load_or_settle(target, 2)[1] == REPORT
    assert len(probed) == 1


def test_a_cache_that_cannot_be_written_is_no_error(target: FakeTarget, probed: list[Target], tmp_path: Path) -> None:
    (tmp_path / "reader-edge").write_text("a file where the folder would be")
    assert [load_or_settle(target, 2)[1], load_or_settle(target, 2)[1]] == [REPORT, REPORT]
    assert len(probed) == 2
