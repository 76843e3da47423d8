"""Packages for devices of IREE: passes see fixed numbers of rows, and every module is compared before it serves."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("iree.runtime", reason="IREE's runtime is not installed: pip install 'reader-edge[iree]'")
pytest.importorskip("iree.compiler", reason="IREE's compiler is not installed: pip install 'reader-edge[iree-export]'")

from reader_edge_export.options import ExportOptions
from reader_edge_export.pipeline import export_model
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, InstallationError, PackageError, ProviderError
from reader_edge_runtime.execution.iree import device_modules, module_files
from reader_edge_runtime.execution.iree.compilation import VISIBLE, compile_module
from reader_edge_runtime.execution.iree.iree_device import IreeDevice
from reader_edge_runtime.execution.iree.module_index import (
    DEVICE_WIDTHS,
    INDEX_NAME,
    LEAST_VISIBLE,
    ModuleIndex,
    mlir_name,
    module_name,
)
from reader_edge_runtime.execution.iree.target_machine import TARGETS, targets_here
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target

IREE = EngineConfig(provider="iree", threads=1)
LONG = [3 + number % 90 for number in range(LEAST_VISIBLE)]  # behind it a pass sees more rows than the least
TREE = DraftTree([8, 9, 10, 11, 12, 40], [-1, 0, 0, 1, 2, 0], [""] * 6)


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of windowed layers and a context that needs more than one size, not to be changed."""
    source = shutil.copytree(tiny_model("gemma2"), tmp_path_factory.mktemp("model") / "gemma2")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4 * LEAST_VISIBLE}))
    options = ExportOptions(attention="portable", check="none", engine="iree", target="vulkan")
    export_model(source, source.parent / "package", options)
    return source.parent / "package"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def package(folder: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelPackage:
    """A copy that a test may spoil."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return ModelPackage.open(shutil.copytree(folder, tmp_path / "package"))


@pytest.fixture
def on_device(package: ModelPackage, cache: Path, monkeypatch: pytest.MonkeyPatch) -> ModelPackage:
    """The package where there is a device: one of Vulkan, or else the processor by a driver that is no processor's.

    With the narrowest modules alone: a device in software takes up to a minute to compile others' shaders.
    """
    monkeypatch.setattr(device_modules, "DEVICE_WIDTHS", (1,))
    monkeypatch.setattr(device_modules, "_MAX_LOADED", 2)
    vulkan = TARGETS["vulkan"]
    try:
        IreeDevice(vulkan, 1, package.path("model.onnx.data"), {})
    except ProviderError as error:
        if not targets_here():
            pytest.skip(f"there is no Vulkan device here, and no processor that modules are made for: {error}")
        flags = (*(flag for flag in targets_here()[0].flags if "demote" not in flag), *vulkan.flags[1:])
        monkeypatch.setitem(TARGETS, "vulkan", replace(vulkan, flags=flags, driver="local-task"))
        kept = cache / "standing in"
        if not kept.exists():
            kept.write_bytes(compile_module(package.path(mlir_name(1)), TARGETS["vulkan"], LEAST_VISIBLE))
        shutil.copy(kept, package.path(module_name(1, LEAST_VISIBLE)))
        others = {module_name(width, LEAST_VISIBLE) for width in DEVICE_WIDTHS[1:]}
        files = {name: entry for name, entry in package.manifest.files.items() if name not in others}
        package.manifest = replace(package.manifest, files=files)
    return package


def test_mlir_leaves_open_how_many_rows_are_visible(package: ModelPackage) -> None:
    assert all(VISIBLE in package.path(mlir_name(width)).read_bytes() for width in DEVICE_WIDTHS)
    assert {module_name(width, LEAST_VISIBLE) for width in DEVICE_WIDTHS} <= package.manifest.files.keys()
    assert package.manifest.precision == "fp32"


@pytest.mark.parametrize("target", ["cuda", "rocm", "metal"])
def test_modules_are_made_for_devices_that_no_machine_here_has(target: str, package: ModelPackage) -> None:
    assert compile_module(package.path(mlir_name(8)), TARGETS[target], 64)


@pytest.mark.long
def test_they_compute_what_onnx_runtime_does_as_a_text_grows(
    on_device: ModelPackage, cache: Path, recwarn: pytest.WarningsRecorder
) -> None:
    found = long_logits(open_target(on_device, IREE))
    expected = long_logits(open_target(on_device, EngineConfig(provider="cpu", threads=1)))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert any("8 nodes and 512 rows, once" in str(each.message) for each in recwarn)
    assert list(cache.rglob("*.vmfb"))  # kept


def test_modules_that_compute_something_else_are_refused_by_name(
    on_device: ModelPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "verdicts"))
    path = on_device.path(INDEX_NAME)
    fields = json.loads(path.read_bytes())
    first, second = (f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 1))
    places = fields["parameters"]
    places[first], places[second] = places[second], places[first]
    path.write_text(json.dumps(fields))
    with pytest.raises(ProviderError, match=r"The module of 1 nodes and 256 rows for vulkan is wrong: its logits are"):
        open_target(on_device, IREE)


def test_a_size_that_is_missed_without_the_compiler_is_told_of(
    on_device: ModelPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (device_modules, module_files):
        monkeypatch.setattr(module, "compiler_version", lambda: None)
    modules = device_modules.DeviceModules(on_device, ModuleIndex.of(on_device), TARGETS["vulkan"])
    with pytest.raises(InstallationError, match=r"no module for 8 nodes and 4096 rows here: pip install"):
        modules.module(8, 4096)


def test_a_module_that_was_spoilt_in_the_cache_is_compiled_again(on_device: ModelPackage, cache: Path) -> None:
    index = ModuleIndex.of(on_device)
    modules = device_modules.DeviceModules(on_device, index, TARGETS["vulkan"])
    path = modules._files.cached(1, 2 * LEAST_VISIBLE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"spoilt")
    with pytest.warns(UserWarning, match=r"Compiling for vulkan, 1 nodes and 512 rows, once"):
        first = modules.module(1, 2 * LEAST_VISIBLE)
    assert path.stat().st_size > 1000
    assert modules.module(1, 2 * LEAST_VISIBLE) is first
    again = device_modules.DeviceModules(on_device, index, TARGETS["vulkan"])
    again.module(1, 2 * LEAST_VISIBLE)  # kept: nothing is compiled, of which a warning would tell


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_module_that_others_could_have_written_is_refused(on_device: ModelPackage, cache: Path) -> None:
    modules = device_modules.DeviceModules(on_device, ModuleIndex.of(on_device), TARGETS["vulkan"])
    path = modules._files.cached(1, 2 * LEAST_VISIBLE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"theirs")
    path.chmod(0o666)
    with pytest.raises(ProviderError, match=r"can be written by its group or others, .*: `chmod go-w` it\.$"):
        modules.module(1, 2 * LEAST_VISIBLE)


def test_no_more_modules_are_loaded_than_memory_is_meant_for(
    on_device: ModelPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_modules, "_MAX_LOADED", 1)
    modules = device_modules.DeviceModules(on_device, ModuleIndex.of(on_device), TARGETS["vulkan"])
    first = modules.module(1, LEAST_VISIBLE)
    shipped = on_device.path(module_name(1, LEAST_VISIBLE))
    monkeypatch.setattr(modules, "_opened", lambda *size: modules.device.load(shipped))
    modules.module(1, 2 * LEAST_VISIBLE)
    assert modules.module(1, LEAST_VISIBLE) is not first


def test_a_pass_that_a_device_refuses_is_one_sentence(on_device: ModelPackage) -> None:
    modules = device_modules.DeviceModules(on_device, ModuleIndex.of(on_device), TARGETS["vulkan"])
    odd = [np.zeros((3, 3), np.float32)] * 5
    with pytest.raises(ProviderError, match=r"IREE failed in a pass \(.*\): export the model again"):
        modules.module(1, LEAST_VISIBLE).call(odd, 3)


def test_packages_of_exact_sums_are_not_for_devices(package: ModelPackage) -> None:
    path = package.path(INDEX_NAME)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"target": "x86-64-v3"}))
    with pytest.raises(PackageError, match=r"is unusable \(portable attention"):
        ModuleIndex.of(package)
    with pytest.raises(ConfigError, match=r"target 'vulkan' needs attention 'portable', not 'portable-exact'"):
        ExportOptions(attention="portable-exact", engine="iree", target="vulkan")
    with pytest.raises(ConfigError, match=r"engine 'iree' needs precision 'fp32', not 'int8'"):
        ExportOptions("int8", "portable", engine="iree", target="vulkan")


def long_logits(target: Target) -> np.ndarray:
    """Of a tree behind a long text, those of all nodes (N, V)."""
    cache = target.new_cache(1, 32)
    for start in range(0, len(LONG), 8):
        part = LONG[start : start + 8]
        target.forward(cache, Pass(0, [DraftTree.chain(part)], [[0]]))
        cache.commit(0, list(range(len(part))))
    wanted = Pass(0, [TREE], [list(range(len(TREE)))], wants_logits=True)
    logits: np.ndarray = target.forward(cache, wanted).wanted_logits[0].copy()
    return logits
