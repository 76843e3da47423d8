"""Measured costs: plausible, kept for this machine and package alone, and re-measured when the file is no good."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring import cost_cache, verify_cost
from reader_edge_runtime.measuring.verify_cost import VerifyCost, measure_verify_cost
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, FileEntry
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target
from tests.fake_target import FakeTarget, make_manifest


@pytest.fixture(scope="module")
def target(demo_folder: Path) -> HostTarget:
    return HostTarget.open(ModelPackage.open(demo_folder))


@pytest.fixture
def num_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Batch sizes measured, by a stand-in that takes no time; the cache is a folder of the test."""
    measured: list[int] = []

    def measure(target: HostTarget, batch_size: int, on_progress: object = None) -> VerifyCost:
        measured.append(batch_size)
        seconds = np.array([[1.0, 2.0], [3.0, 4.0]])
        return VerifyCost(batch_size, (10, 20), (1, 4), seconds, row_s=0.25, padding_share=0.5)

    monkeypatch.setattr(cost_cache, "measure_verify_cost", measure)
    monkeypatch.setattr(cost_cache, "user_cache_path", lambda name: tmp_path / name)
    return measured


@pytest.mark.long
def test_measurement_covers_the_grid_with_positive_times(target: HostTarget) -> None:
    cost = measure_verify_cost(target, max_seconds=0.0)
    assert cost.widths[0] == 1
    assert cost.seconds.shape == (len(cost.pasts), len(cost.widths))
    assert (cost.seconds > 0).all()
    assert 0 <= cost.row_s < cost.seconds[0, 0]


@pytest.mark.parametrize(("batch_size", "longest"), [(1, 2048), (4, 2048), (16, 512), (200, 64)])
def test_texts_of_large_batches_are_short_while_they_are_measured(
    batch_size: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_cost, "_seconds", lambda *_: 1.0)
    cost = measure_verify_cost(FakeTarget(make_manifest(6, max_context=4096)), batch_size, max_seconds=0.0)
    assert cost.pasts[-1] == longest


@pytest.mark.parametrize(
    ("node_s", "num_widths", "pasts", "num_passes"),
    [
        (1e-6, 12, (64, 512, 2048), 2),
        (0.004, 12, (64, 512, 2048), 1),
        (0.015, 7, (64, 512, 2048), 1),
        (0.03, 6, (64, 2048), 1),
        (0.5, 4, (64, 2048), 1),
    ],
)
def test_a_slow_model_is_measured_at_fewer_points_and_once_each(
    node_s: float, num_widths: int, pasts: tuple[int, ...], num_passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def seconds(_target: object, _cache: object, _past: int, trees: list[DraftTree], *_: object) -> float:
        asked.append(len(trees[0]))
        return (9 + len(trees[0])) * node_s

    monkeypatch.setattr(verify_cost, "_seconds", seconds)
    cost = measure_verify_cost(FakeTarget(make_manifest(6, max_context=4096)), max_seconds=0.0)
    assert (len(cost.widths), cost.pasts) == (num_widths, pasts)
    assert cost.widths[-1] >= 8
    assert max(asked) == cost.widths[-1]  # no pass is made that is wider than what is measured
    assert asked.count(4) == 2 * num_passes * len(cost.pasts)
    assert cost.seconds[0].tolist() == pytest.approx([(9 + width) * node_s for width in cost.widths])


def test_passes_that_are_timed_have_tokens_of_many_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of one token choose the same experts of a mixture, and would look cheaper than a draft's."""
    seen: list[list[int]] = []

    def seconds(_target: object, _cache: object, _past: int, trees: list[DraftTree], *_: object) -> float:
        seen.append([token_id for tree in trees for token_id in tree.token_ids])
        return 1e-6

    monkeypatch.setattr(verify_cost, "_seconds", seconds)
    measure_verify_cost(FakeTarget(make_manifest(50_000, max_context=4096)), 4, max_seconds=0.0)
    assert max(map(len, seen)) == 64
    assert all(len(set(token_ids)) == len(token_ids) for token_ids in seen)
    assert all(0 <= token_id < 50_000 for token_ids in seen for token_id in token_ids)


@pytest.mark.parametrize(("cost_of_padding", "share"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0)])
def test_what_padding_takes_is_told_by_one_wide_tree_among_narrow_ones(
    cost_of_padding: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(target: object, cache: object, past: int, trees: Sequence[DraftTree], *_: object) -> float:
        widest, num_nodes = max(map(len, trees)), sum(map(len, trees))
        return 1 + 0.1 * (num_nodes + cost_of_padding * (widest * len(trees) - num_nodes))

    monkeypatch.setattr(verify_cost, "_seconds", seconds)
    target = FakeTarget(make_manifest(6, max_context=4096))
    assert measure_verify_cost(target, 4, max_seconds=0.0).padding_share == pytest.approx(share)
    assert measure_verify_cost(target, 1, max_seconds=0.0).padding_share == 1  # alone, no tree is padded


def test_second_load_reads_what_the_first_measured(target: HostTarget, num_measured: list[int]) -> None:
    first = cost_cache.load_or_measure(target, threads=2, batch_size=4)
    second = cost_cache.load_or_measure(target, threads=2, batch_size=4)
    assert num_measured == [4]
    assert (first.batch_size, first.pasts, first.widths) == (second.batch_size, second.pasts, second.widths)
    np.testing.assert_array_equal(first.seconds, second.seconds)
    assert first.row_s == second.row_s == 0.25
    assert first.padding_share == second.padding_share == 0.5
    cost_cache.load_or_measure(target, threads=2, batch_size=4, is_redone=True)
    assert num_measured == [4, 4]


def test_another_thread_count_or_batch_size_is_measured_anew(target: HostTarget, num_measured: list[int]) -> None:
    cost_cache.load_or_measure(target, threads=1, batch_size=1)
    cost_cache.load_or_measure(target, threads=2, batch_size=1)
    cost_cache.load_or_measure(target, threads=2, batch_size=4)
    assert num_measured == [1, 1, 4]


def test_what_the_target_says_that_times_depend_on_is_measured_anew(target: HostTarget) -> None:
    others = [replace_facts(target, *target.pass_facts, gpu) for gpu in ("one GPU", "another GPU")]
    others += [target.with_min_rows(2), HostTarget(target.session, target.manifest, is_native=not target.is_native)]
    assert len({cost_cache.cost_path(each, 1, 1) for each in (target, *others)}) == 5


def test_a_table_of_successors_that_comes_later_leaves_times_as_they_are(target: HostTarget) -> None:
    files = {**target.manifest.files, SUCCESSORS_NAME: FileEntry(1, "ab" * 32)}
    tuned = HostTarget(target.session, replace(target.manifest, files=files), target.is_native)
    assert cost_cache.cost_path(tuned, 1, 1) == cost_cache.cost_path(target, 1, 1)


def replace_facts(target: HostTarget, *facts: str) -> Target:
    fake = FakeTarget(target.manifest)
    fake.pass_facts = facts
    return fake


@pytest.mark.long
def test_a_cost_that_passes_outrun_is_measured_anew_at_the_next_start(
    demo_folder: Path, target: HostTarget, num_measured: list[int]
) -> None:
    for num_starts in (1, 2):  # the stand-in's passes take seconds
        engine = Engine.load(demo_folder, EngineConfig(threads=2, is_probed=False))
        assert len(num_measured) == num_starts
        engine.generate("# tar", GenerationConfig(max_tokens=40, ignores_eos=True))
    cost_cache.forget_cost(target, threads=2, batch_size=1)  # what is not there is no error


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"pasts": 1, "widths": [1], "seconds": [[1]]}',
        '{"pasts": [10], "widths": [1, 1], "seconds": [[1, 1]]}',
        '{"pasts": [10], "widths": [1, 2], "seconds": [[1]]}',
        '{"pasts": [10], "widths": [1], "seconds": [[-1]]}',
        '{"pasts": [10], "widths": [1], "seconds": [[NaN]]}',
        '{"pasts": [10], "widths": [1], "seconds": [["x"]]}',
        '{"pasts": [10], "widths": [1], "seconds": [[1]]}',
        '{"pasts": [10], "widths": [1], "seconds": [[1]], "row_s": -1}',
        '{"pasts": [10], "widths": [1], "seconds": [[1]], "row_s": NaN}',
        '{"pasts": [1%s], "widths": [1], "seconds": [[1]], "row_s": 0}' % ("0" * 400),
        '{"pasts": [10], "widths": [1, 1%s], "seconds": [[1, 2]], "row_s": 0}' % ("0" * 400),
        '{"pasts": [10], "widths": [1, 65], "seconds": [[1, 2]], "row_s": 0}',
        '{"pasts": [10], "widths": [true], "seconds": [[1]], "row_s": 0}',
        '{"pasts": [10], "widths": [1], "seconds": [[1%s]], "row_s": 0}' % ("0" * 400),
        '{"pasts": [10], "widths": [1], "seconds": [[1%s]], "row_s": 0}' % ("0" * 5000),
        '{"pasts": [10], "widths": [1], "seconds": [[1e308]], "row_s": 0}',
        '{"pasts": [10], "widths": [1], "seconds": [[1]], "row_s": 1%s}' % ("0" * 400),
        '{"pasts": [10], "widths": [1], "seconds": [[1]], "row_s": [[]]}',
        '{"pasts": [10], "widths": [1], "seconds": [[1]], "row_s": 0, "padding_share": 1.5}',
        '{"pasts": [10], "widths": [1], "seconds": [[1]], "row_s": 0, "padding_share": NaN}',
        " " * ((1 << 20) + 1),
    ],
)
def test_unusable_file_is_measured_anew(content: str, target: HostTarget, num_measured: list[int]) -> None:
    path = cost_cache.cost_path(target, threads=2, batch_size=1)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    cost_cache.load_or_measure(target, threads=2, batch_size=1)
    assert num_measured == [1]


def test_device_in_place_of_a_file_is_not_read(
    target: HostTarget, num_measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(cost_cache, "user_cache_path", lambda name: blocked / name)
    assert cost_cache.load_or_measure(target, threads=2, batch_size=1)
