"""Layers are timed by their kind, so that a split takes few passes, and stages take about as long as each other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from reader_edge_export.split.split_package import layer_seconds, split_package

GB = 10**9
SMALL_FIRST = (273_500_000, 8 * GB)  # four layers of the demo, and what a process takes


class Timed:
    """Stages that take a second for themselves, and so many for each of their layers. written: what was asked for."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.written: list[tuple[range, int, int]] = []

    def write(self, folder: Path, layers: range, number: int, num_stages: int) -> None:
        self.written.append((layers, number, num_stages))

    def opened(self, package: object, threads: int) -> Mock:
        layers = self.written[-1][0]
        return Mock(pass_seconds=lambda before: 1 + sum(self.seconds[layer] for layer in layers))


@contextmanager
def timed(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> Iterator[Timed]:
    stages = Timed(seconds)
    with monkeypatch.context() as patch:
        patch.setattr("reader_edge_export.split.split_package.ModelPackage", Mock())
        patch.setattr("reader_edge_export.split.split_package.HostStage", Mock(open=stages.opened))
        yield stages


def test_one_layer_is_timed_for_all_that_are_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    with timed(monkeypatch, [3, 2, 2, 2, 5, 9]) as stages:
        assert layer_seconds([900, 400, 401, 399, 600, 1000], stages.write) == pytest.approx([3, 2, 2, 2, 5, 9])
    assert stages.written == [
        (range(1), 1, 3),
        (range(1, 2), 2, 3),
        (range(4, 5), 2, 3),
        (range(5, 6), 3, 3),
        (range(1, 3), 2, 3),
    ]


def test_where_no_two_are_alike_sessions_count_with_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    with timed(monkeypatch, [3, 2, 4, 9]) as stages:
        assert layer_seconds([900, 400, 800, 1000], stages.write) == [4, 3, 5, 10]


def test_stages_are_as_long_as_each_other_as_far_as_boxes_have_room(
    demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_end(layer_bytes: list[int], write_stage: Callable[..., object]) -> list[float]:
        return [1.0] * (len(layer_bytes) - 1) + [5.0]

    monkeypatch.setattr("reader_edge_export.split.split_package.layer_seconds", slow_end)
    for name, boxes, layers in (("out", (), [6, 2]), ("fit", (8 * GB, 8 * GB), [6, 2]), ("less", SMALL_FIRST, [4, 4])):
        report = split_package(demo_folder, tmp_path / name, 2, boxes)
        assert [manifest.num_layers for manifest in report.manifests] == layers


def test_a_split_measures_the_layers_of_a_model(demo_folder: Path, tmp_path: Path) -> None:
    report = split_package(demo_folder, tmp_path / "out", 3)
    assert sum(manifest.num_layers for manifest in report.manifests) == 8
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "1",
        "2",
        "3",
        "pipeline.json",
        "pipeline.key",
    ]
