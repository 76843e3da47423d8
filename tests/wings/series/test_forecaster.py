"""Forecasts from a package: shapes, units, seeds, and one sentence for each wrong argument."""

import hashlib
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from benchmarks.series.drafted import AlwaysDrafted
from reader_edge_runtime.errors import (
    ConfigError,
    IntegrityError,
    ManifestError,
    PackageError,
    ProviderError,
    SeriesError,
)
from reader_edge_series import path_sampler
from reader_edge_series.draft_length import FixedCosts
from reader_edge_series.forecaster import DRAFTS, Forecaster
from reader_edge_series.prompt import Scaling
from reader_edge_series.series_manifest import SERIES_MANIFEST_NAME, SeriesManifest, read_series_manifest
from tests.wings.series.series_target import tiny_package
from tests.wrong_fields import assert_each_is_named

WAVES = {"a": 100 + np.sin(np.arange(700) / 4), "b": 5e6 * np.cos(np.arange(300) / 7)}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_package(tmp_path_factory.mktemp("series"))


@pytest.fixture(scope="module")
def forecaster(package: Path) -> Forecaster:
    return Forecaster.load(package, threads=1)


@pytest.fixture
def spoilt(package: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    for path in package.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("drafts", DRAFTS)
def test_paths_of_all_series_come_in_their_units(forecaster: Forecaster, drafts: str) -> None:
    found = forecaster.forecast(WAVES, 50, 70, drafts=drafts, seed=1)
    assert found.names == ["a", "b"]
    assert found.paths.shape == (2, 70, 50)
    assert np.isfinite(found.paths).all()
    assert (np.abs(found.mean()[0] - 100) < 50).all()
    assert np.abs(found.mean()[1]).max() > 1000
    low, high = np.moveaxis(found.quantiles([0.1, 0.9]), 1, 0)
    assert low.shape == (2, 50)
    assert (low <= high).all()


@pytest.mark.parametrize("kind", ["datetime64[D]", "datetime64[us]", object])
def test_columns_of_times_are_left_out(forecaster: Forecaster, kind: str) -> None:
    times = np.arange("2020-01-01", "2020-10-27", dtype="datetime64[D]").astype("datetime64[us]").astype(kind)
    assert forecaster.forecast({"time": times, "b": WAVES["b"]}, 2, 2).names == ["b"]
    with pytest.raises(SeriesError, match=r"There is no series: .* with a column of numbers"):
        forecaster.forecast({"time": times}, 2)
    with pytest.raises(SeriesError, match="Series 'b' is no column of numbers"):
        forecaster.forecast({"b": [[1.0], [2.0, 3.0]]}, 2)


@pytest.mark.parametrize("drafts", DRAFTS)
def test_drafts_are_tried_where_they_may_pay(package: Path, drafts: str) -> None:
    found = Forecaster.load(package, threads=1).forecast(WAVES, 200, 1, drafts=drafts)
    assert (found.stats.num_drafted == 0) == (drafts == "none")


@pytest.mark.parametrize("drafts", DRAFTS)
def test_a_seed_draws_the_same_paths_each_time(package: Path, drafts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FixedCosts, "of", lambda costs, length: 1 + 0.01 * length)
    new, used = Forecaster.load(package, threads=1), Forecaster.load(package, threads=1)
    for seed in (None, 1, 2):
        used.forecast(WAVES, 200, 1, drafts=drafts, seed=seed)
    for num_paths in (1, 3):
        one, other, third = (
            each.forecast(WAVES, 160, num_paths, drafts=drafts, seed=seed)
            for each, seed in ((new, 5), (used, 5), (new, 6))
        )
        np.testing.assert_array_equal(one.paths, other.paths)
        assert one.stats == other.stats
        assert (one.stats.num_drafted == 0) == (drafts == "none")
        assert not np.array_equal(one.paths, third.paths)


def test_a_model_without_a_small_one_drafts_by_itself(spoilt: Path) -> None:
    path = spoilt / SERIES_MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"draft": None}))
    alone = Forecaster.load(spoilt, threads=1)
    assert alone.forecast(WAVES, 40, 2).paths.shape == (2, 2, 40)
    assert alone.forecast(WAVES, 8, 32).paths.shape == (2, 32, 8)  # which fill a pass
    with pytest.raises(ConfigError, match="no small model"):
        alone.forecast(WAVES, 40, 2, drafts="model")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([1.0] * 400, "'x' is 1 in all of its last 400 values"),
        ([1.0, np.nan, *range(400)], "gap at value 2 of 402"),
        ([1.0, None, *range(400)], "gap at value 2 of 402"),
        ([*range(400), np.inf], "has inf as value 401"),
        ([*range(400), -1e200], "has -1e.200 as value 401"),
        (range(100), "has 100 values, but this model needs 192"),
        (["a"] * 400, "no column of numbers"),
        (["1", object()], "no column of numbers"),
        (np.zeros((400, 2)), "no column of numbers"),
        (np.zeros(400, complex), "no column of numbers"),
    ],
)
def test_a_wrong_series_gets_a_sentence(forecaster: Forecaster, values: Any, sentence: str) -> None:
    with pytest.raises(SeriesError, match=sentence):
        forecaster.forecast({"x": values}, 8)


@pytest.mark.parametrize("frame", [{}, [1, 2], None])
def test_what_is_no_frame_is_refused(forecaster: Forecaster, frame: Any) -> None:
    with pytest.raises(SeriesError, match="dict of arrays"):
        forecaster.forecast(frame, 8)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"horizon": 0}, "horizon is 0"),
        ({"horizon": 1.5}, "horizon is 1.5"),
        ({"horizon": 10**6}, "from 1 to 75"),
        ({"horizon": 8, "num_paths": 0}, "num_paths is 0"),
        ({"horizon": 2000, "num_paths": 1 << 16}, "2 series, 65536 paths each and 2000 values a path take 2.1 GB"),
        ({"horizon": 8, "drafts": "luck"}, "drafts is 'luck'"),
    ],
)
def test_wrong_arguments_are_refused(forecaster: Forecaster, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        forecaster.forecast(WAVES, **arguments)


@pytest.mark.parametrize("threads", [-1, 3_000_000_000])
def test_threads_are_those_of_engines(package: Path, threads: int) -> None:
    with pytest.raises(ConfigError, match=f"threads is {threads}, but must be from 0 to 1024"):
        Forecaster.load(package, threads)


@pytest.mark.parametrize("size", [1e-200, 1e-310])
def test_very_small_numbers_are_forecast_as_others_are(forecaster: Forecaster, size: float) -> None:
    small = forecaster.forecast({"a": size * np.sin(np.arange(400) / 4)}, 9, 4, drafts="none", seed=1)
    usual = forecaster.forecast({"a": np.sin(np.arange(400) / 4)}, 9, 4, drafts="none", seed=1)
    np.testing.assert_allclose(small.paths / size, usual.paths, rtol=1e-3, atol=1e-3)


def test_values_that_are_all_alike_have_a_deviation_of_one() -> None:
    assert Scaling.of(np.full(24, 0.1)) == Scaling(0.1, 1.0)


def test_a_past_far_from_its_end_stays_finite() -> None:
    known = np.array([0.0] * 9 + [5e-324])
    assert np.isfinite(Scaling.of(known).scaled(np.array([1e100, -1e100]))).all()


def test_wrong_quantiles_are_refused(forecaster: Forecaster) -> None:
    with pytest.raises(ConfigError, match="quantile is 2"):
        forecaster.forecast(WAVES, 8, 2).quantiles([2])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format_version", 7),
        ("files", {}),
        ("draft", {}),
    ],
)
def test_a_spoilt_manifest_is_refused(spoilt: Path, name: str, value: Any) -> None:
    path = spoilt / SERIES_MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {name: value}))
    with pytest.raises(ManifestError, match=f"unusable .*{name}"):
        read_series_manifest(spoilt)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("model", "max_prompt", 1),
        ("draft", "patch_size", 4),
        ("draft", "max_context", 2048),
    ],
)
def test_sizes_that_cannot_be_are_refused(spoilt: Path, part: str, name: str, value: int) -> None:
    path = spoilt / SERIES_MANIFEST_NAME
    fields = json.loads(path.read_bytes())
    fields[part][name] = value
    path.write_text(json.dumps(fields))
    with pytest.raises(ManifestError, match=rf"unusable ({part}\.{name}|draft)"):
        read_series_manifest(spoilt)


def test_every_field_of_a_manifest_is_named_where_it_is_wrong(spoilt: Path) -> None:
    assert_each_is_named(SeriesManifest, json.loads((spoilt / SERIES_MANIFEST_NAME).read_bytes()))


def test_a_context_without_room_for_a_forecast_is_refused(spoilt: Path) -> None:
    path = spoilt / SERIES_MANIFEST_NAME
    fields = json.loads(path.read_bytes())
    fields["model"]["max_context"] = fields["draft"]["max_context"] = fields["model"]["max_prompt"]
    path.write_text(json.dumps(fields))
    with pytest.raises(ManifestError, match=r"unusable model\.max_context \(72\)"):
        read_series_manifest(spoilt)


@pytest.mark.parametrize(("name", "value"), [("num_layers", 1), ("head_dim", 4), ("num_patches", 1), ("window", 95)])
def test_a_graph_that_is_not_what_its_manifest_says_is_refused(spoilt: Path, name: str, value: int) -> None:
    path = spoilt / SERIES_MANIFEST_NAME
    fields = json.loads(path.read_bytes())
    fields["model"][name] = value
    path.write_text(json.dumps(fields))
    with pytest.raises(ProviderError, match="not what its manifest says"):
        Forecaster.load(spoilt)


@pytest.mark.parametrize("name", ["series", "series_draft"])
@pytest.mark.parametrize("weight", [np.nan, 3e38])
def test_weights_that_lead_to_no_numbers_are_named(spoilt: Path, name: str, weight: float) -> None:
    weights, manifest = spoilt / f"{name}.onnx.data", spoilt / SERIES_MANIFEST_NAME
    content = np.full(weights.stat().st_size // 4, weight, np.float32).tobytes()
    weights.write_bytes(content)
    fields = json.loads(manifest.read_text())
    fields["files"][weights.name] = {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_text(json.dumps(fields))
    drafts = "model" if name == "series_draft" else "none"
    with patch.object(path_sampler, "DraftLength", AlwaysDrafted), pytest.raises(ProviderError, match="no numbers"):
        Forecaster.load(spoilt, threads=1).forecast(WAVES, 96, 4, drafts=drafts)


def test_a_changed_file_is_refused(spoilt: Path) -> None:
    graph = spoilt / "series.onnx.data"
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match="checksum"):
        Forecaster.load(spoilt)


def test_folders_without_a_forecasting_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="No forecasting model"):
        Forecaster.load(tmp_path / "none")
    with pytest.raises(ManifestError, match=r"holds no reader_edge_series\.json"):
        Forecaster.load(tmp_path)
