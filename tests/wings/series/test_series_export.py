"""Forecasting models in files, and the commands on them."""

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save

from reader_edge.cli import main
from reader_edge_export.progress import Progress
from reader_edge_runtime.errors import ConfigError, ExportError, PackageError, ParityError
from reader_edge_runtime.package.model_package import PackageFiles
from reader_edge_series.export.checkpoint import read_checkpoint
from reader_edge_series.export.series_export import MAX_ERROR, check_patches, export_series
from reader_edge_series.patch_target import HostPatches
from reader_edge_series.series_manifest import MODEL_NAME, read_series_manifest
from reader_edge_series.tables import bundled
from reader_edge_series.tables.table import read_table, write_table
from tests.wings.series.series_target import tiny_modules, tiny_package


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_package(tmp_path_factory.mktemp("series"))


def _target(package: Path) -> HostPatches:
    manifest = read_series_manifest(package)
    return HostPatches.open(PackageFiles(package, manifest.files), MODEL_NAME, manifest.model, threads=1)


def test_cached_patches_say_what_a_full_pass_says(package: Path) -> None:
    manifest = read_series_manifest(package)
    assert set(manifest.checks) == {"series.onnx error", "series_draft.onnx error"}
    assert max(manifest.checks.values()) <= MAX_ERROR
    assert check_patches(_target(package), tiny_modules()[0]) <= MAX_ERROR


def test_coming_patches_change_nothing_behind_them(package: Path) -> None:
    target, random = _target(package), np.random.default_rng(0)
    patches = random.standard_normal((1, 30, 8)).astype(np.float32)
    other = patches.copy()
    other[:, 20:] += 3
    rows = [list(range(20))]
    found, again = (target.forward(target.new_cache(1, 30), 0, each, rows) for each in (patches, other))
    assert np.abs(found - again).max() <= MAX_ERROR


def test_a_cache_beyond_all_memory_is_refused_with_its_size(package: Path) -> None:
    target = _target(package)
    target.sizes = replace(target.sizes, max_context=1 << 40)
    with pytest.raises(ConfigError, match=r"2 x 1099511627776 tokens needs 562950\.0 GB"):
        target.new_cache(2, 1 << 40)


def test_another_module_is_kept_apart(package: Path) -> None:
    module = tiny_modules()[0]
    with torch.no_grad():
        module.head.bias.add_(0.01)
    with pytest.raises(ParityError, match="strays by"):
        check_patches(_target(package), module)


def test_a_model_without_a_small_one_is_exported_alone(package: Path, tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    trained.mkdir()
    for name in ("config.json", "model.safetensors"):
        (trained / name).write_bytes((package.parent / "trained" / name).read_bytes())
    manifest = export_series(trained, tmp_path / "out", Progress())
    assert manifest.draft is None
    assert read_series_manifest(tmp_path / "out") == manifest


@pytest.mark.long
def test_an_existing_package_is_replaced_only_when_forced(package: Path, tmp_path: Path) -> None:
    trained, out = package.parent / "trained", tmp_path / "out"
    export_series(trained, out, Progress())
    with pytest.raises(ExportError, match="exists already"):
        export_series(trained, out, Progress())
    assert export_series(trained, out, Progress(), is_forced=True).draft is not None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "llama"}'),
        ("config.json", b"[]"),
        ("model.safetensors", b"not tensors"),
        ("config.json", {"num_attention_heads": 0}),
        ("config.json", {"hidden_size": "abc"}),
        ("config.json", {"hidden_size": 40}),
        ("config.json", {"num_hidden_layers": 200_000}),
        ("config.json", {"num_hidden_layers": -1}),
        ("config.json", {"patch_size": 0}),
        ("config.json", {"hidden_act": "nope"}),
    ],
)
def test_spoilt_folders_refused(package: Path, tmp_path: Path, name: str, content: bytes | dict[str, object]) -> None:
    for each in ("config.json", "model.safetensors"):
        (tmp_path / each).write_bytes((package.parent / "trained" / each).read_bytes())
    if isinstance(content, dict):
        content = json.dumps(json.loads((tmp_path / name).read_bytes()) | content).encode()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ExportError, match="no forecasting model"):
        read_checkpoint(tmp_path)


def test_sizes_that_are_not_those_of_the_tensors_are_refused(package: Path, tmp_path: Path) -> None:
    for each in ("config.json", "model.safetensors"):
        (tmp_path / each).write_bytes((package.parent / "trained" / each).read_bytes())
    fields = json.loads((tmp_path / "config.json").read_bytes()) | {"hidden_size": 1 << 20}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ExportError, match="no forecasting model"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("part", ["", "draft"])
@pytest.mark.parametrize(
    "spoilt",
    [
        torch.Tensor.half,
        torch.Tensor.bfloat16,
        torch.Tensor.double,
        torch.Tensor.int,
        lambda weight: weight * float("nan"),
        lambda weight: weight + float("inf"),
    ],
    ids=["float16", "bfloat16", "float64", "int32", "NaN", "infinite"],
)
def test_weights_that_no_training_writes_are_refused(
    package: Path, tmp_path: Path, part: str, spoilt: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    trained = shutil.copytree(package.parent / "trained", tmp_path / "trained")
    weights = load_file(trained / part / "model.safetensors")
    (trained / part / "model.safetensors").write_bytes(save({name: spoilt(each) for name, each in weights.items()}))
    with pytest.raises(ExportError, match=r"holds no forecasting model \(.* other weights than finite ones of float32"):
        export_series(trained, tmp_path / "out", Progress())
    assert os.listdir(tmp_path) == ["trained"]


def test_a_link_to_no_small_model_is_refused(package: Path, tmp_path: Path) -> None:
    trained = shutil.copytree(package.parent / "trained", tmp_path / "trained")
    shutil.rmtree(trained / "draft")
    (trained / "draft").symlink_to(tmp_path / "nowhere")
    with pytest.raises(
        ExportError, match=r"draft/config\.json' .*: give a folder written by 'reader-edge series train'"
    ):
        read_checkpoint(trained)


def test_who_may_read_the_config_may_read_the_weights(package: Path) -> None:
    modes = {file.stat().st_mode for file in (package.parent / "trained").rglob("*.*") if file.is_file()}
    assert len(modes) == 1


def test_a_folder_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="series train"):
        read_checkpoint(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "waves.csv"
    write_table({"slow": np.sin(np.arange(2000) / 9).tolist(), "fast": np.cos(np.arange(2000) / 3).tolist()}, path)
    return path


def test_a_trained_model_forecasts_what_a_table_holds(table: Path, tmp_path: Path) -> None:
    trained, out = str(tmp_path / "trained"), str(tmp_path / "package")
    sizes = ["--steps", "2", "--layers", "1", "--size", "32"]
    done = CliRunner().invoke(main, ["series", "train", str(table), "-o", trained, *sizes])
    assert (done.exit_code, done.stdout) == (0, f"{trained}\n"), done.output
    done = CliRunner().invoke(main, ["series", "export", trained, out])
    assert (done.exit_code, done.stdout) == (0, f"{out}\n"), done.output
    arguments = ["series", "forecast", str(table), "--model", out, "--horizon", "90", "--paths", "5", "--seed", "3"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    header, *rows = done.stdout.splitlines()
    assert header == "step,series,mean,q0.1,q0.5,q0.9"
    assert [row.split(",")[:2] for row in rows] == [[str(n), s] for s in ("slow", "fast") for n in range(1, 91)]
    assert "2 series, 5 paths each" in done.stderr
    arguments = [*arguments[:-6], "--column", "fast", "--horizon", "400", "--paths", "1", "--seed", "3"]
    one, other = (CliRunner().invoke(main, arguments) for _ in range(2))
    assert one.stdout == other.stdout


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_forecast_is_written_and_plotted(package: Path, table: Path, tmp_path: Path, suffix: str) -> None:
    out, plot = tmp_path / f"forecast.{suffix}", tmp_path / "forecast.svg"
    arguments = ["--model", str(package), "--horizon", "9", "--paths", "3", "--drafts", "none", "--quantiles", "0.25"]
    done = CliRunner().invoke(
        main, ["series", "forecast", str(table), *arguments, "-o", str(out), "--plot", str(plot), "--column", "fast"]
    )
    assert (done.exit_code, done.stdout) == (0, f"{out}\n"), done.output
    assert "accepted" not in done.stderr
    assert b"<svg" in plot.read_bytes()
    assert len(read_table(out, None, ()).series["q0.25"]) == 9


def test_names_reach_pipes_whole_and_plots_as_plain_text(package: Path, tmp_path: Path) -> None:
    path, plot, name = tmp_path / "named.csv", tmp_path / "plot.svg", '\x1b[2J\u202e"q",$\\frac{$'
    write_table({name: np.sin(np.arange(400)).tolist(), "\x1b[1mz": ["a"] * 400}, path)
    arguments = ["series", "forecast", str(path), "--model", str(package), "--horizon", "2", "--paths", "2"]
    done = CliRunner().invoke(main, [*arguments, "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    assert [row["series"] for row in csv.DictReader(io.StringIO(done.stdout))] == [name] * 2
    assert r"no numbers: \x1b[1mz." in done.stderr
    assert b"\x1b" not in plot.read_bytes()


@pytest.mark.parametrize(("text", "label"), [("t,x\n", "time"), ("x\n", "step")])
def test_a_plot_has_the_times_of_the_table(
    package: Path, tmp_path: Path, text: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the very end of the calendar."""
    labels: list[str] = []
    monkeypatch.setattr("matplotlib.axes.Axes.set_xlabel", lambda _, sentence: labels.append(sentence))
    days = np.arange("9998-12-01", "9999-12-31", dtype="datetime64[D]") if label == "time" else range(395)
    rows = [f"{day},{np.sin(n)}" if label == "time" else str(np.sin(n)) for n, day in enumerate(days)]
    path, plot = tmp_path / "table.csv", tmp_path / "plot.png"
    path.write_text(text + "\n".join(rows))
    arguments = ["--model", str(package), "--horizon", "1", "--paths", "2", "--plot", str(plot)]
    done = CliRunner().invoke(main, ["series", "forecast", str(path), *arguments])
    assert (done.exit_code, labels, plot.is_file()) == (0, [label], True), done.output


@pytest.mark.parametrize(("option", "name"), [("-o", "table.csv"), ("--plot", "link.svg")])
def test_the_table_itself_is_not_replaced(package: Path, table: Path, option: str, name: str) -> None:
    path = table.rename(table.with_name("table.csv"))
    path.with_name("link.svg").symlink_to(path)
    before = path.read_bytes()
    arguments = ["--model", str(package), "--horizon", "2", "--paths", "2", option, str(path.with_name(name))]
    done = CliRunner().invoke(main, ["series", "forecast", str(path), *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is the table that is forecast" in done.stderr
    assert path.read_bytes() == before


def test_columns_without_numbers_are_named(package: Path, tmp_path: Path) -> None:
    path = tmp_path / "named.csv"
    write_table({"name": ["a"] * 400, "x": np.sin(np.arange(400)).tolist()}, path)
    arguments = ["series", "forecast", str(path), "--model", str(package), "--horizon", "8", "--paths", "2"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "Left out, since they hold no numbers: name." in done.stderr


@pytest.mark.parametrize("levels", ["a", "0.5,0.5", "1.5"])
def test_wrong_quantiles_are_refused(levels: str) -> None:
    done = CliRunner().invoke(main, ["series", "forecast", "--quantiles", levels])
    assert done.exit_code == 2
    assert "Invalid value for '--quantiles'" in done.output


def test_a_wrong_series_gets_a_sentence_and_no_file(package: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "short.csv", tmp_path / "out.csv"
    write_table({"x": [1.0, 2.0]}, path)
    done = CliRunner().invoke(main, ["series", "forecast", str(path), "--model", str(package), "-o", str(out)])
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("Error: Series 'x' has 2 values")
    assert not out.exists()


def test_too_short_series_are_refused_by_length_before_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reader_edge_series.export.train_series", None)  # cannot be imported
    path, out = tmp_path / "few.csv", tmp_path / "out"
    write_table({"x": np.arange(900.0).tolist()}, path)
    done = CliRunner().invoke(main, ["series", "train", str(path), "-o", str(out)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "has 900 values, but a training needs 1040, the 20% held out included: give a longer one." in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["few.csv"]


def test_passes_that_were_not_made_are_not_counted(package: Path, table: Path) -> None:
    arguments = ["series", "forecast", str(table), "--model", str(package), "--paths", "2", "--horizon"]
    assert "passes" not in CliRunner().invoke(main, [*arguments, "3"]).stderr
    assert "1 passes" in CliRunner().invoke(main, [*arguments, "16", "--drafts", "none"]).stderr


def test_without_a_table_electricity_that_comes_along_is_forecast_by_the_bundled_model() -> None:
    done = CliRunner().invoke(main, ["series", "forecast", "--horizon", "8", "--paths", "2"])
    assert done.exit_code == 0, done.output
    header, *rows = (line.split(",") for line in done.stdout.splitlines())
    assert header[:3] == ["time", "series", "mean"]
    assert [row[:2] for row in rows] == [[f"2014-07-23 {hour:02}:00:00", "electricity"] for hour in range(8)]


def test_the_bundled_model_and_its_table_are_under_five_megabytes() -> None:
    files = [*bundled.bundled_forecaster().iterdir(), bundled.bundled_table()]
    assert 1_000_000 < sum(path.stat().st_size for path in files) < 5_000_000


def test_an_installation_without_a_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "SERIES_MANIFEST_NAME", "none.json")
    with pytest.raises(PackageError, match="no forecasting model"):
        bundled.bundled_forecaster()
