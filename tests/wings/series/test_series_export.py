"""What is exported is the module: cached patches, windows and all; what is wrong is refused in a sentence."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

from reader_edge_export.progress import Progress
from reader_edge_runtime.errors import ConfigError, ExportError, ParityError
from reader_edge_runtime.package.package_files import PackageFiles
from reader_edge_series.export.checkpoint import read_checkpoint
from reader_edge_series.export.series_export import MAX_ERROR, check_patches, export_series
from reader_edge_series.patch_target import HostPatches
from reader_edge_series.series_manifest import MODEL_NAME, read_series_manifest
from tests.wings.series.tiny_forecaster import tiny_modules, tiny_package


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
def test_a_spoilt_folder_is_refused(
    package: Path, tmp_path: Path, name: str, content: bytes | dict[str, object]
) -> None:
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
