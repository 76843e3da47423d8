"""Providers that no GPU has run yet, on libraries that stand in for theirs."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_tensorrt import engine, libraries
from reader_edge_tensorrt.engine import engine_folder, open_engine, provider_options
from reader_edge_tensorrt.libraries import TensorRt, has_tensorrt, tensorrt_obstacle

WHEELS, PLUGIN = TensorRt("TensorrtExecutionProvider", "TensorRT 10.16.1"), TensorRt("Rtx", "0.5.0", [object()])
RANGES = {"input_ids": ((1, 1), (1, 8), (8, 256)), "past_key.0": ((1, 2, 64, 16), (1, 2, 64, 16), (8, 2, 64, 16))}


class Session:
    """A session as far as its placement: the (provider, nodes) of each part."""

    def __init__(self, *parts: tuple[str, list[str]]) -> None:
        self._parts = parts

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return [
            SimpleNamespace(
                ep_name=name, get_nodes=lambda nodes=nodes: [SimpleNamespace(op_type=node, name="") for node in nodes]
            )
            for name, nodes in self._parts
        ]


def test_both_get_the_sizes_of_every_input() -> None:
    built, of_plugin = (provider_options(each, RANGES, None) for each in (WHEELS, PLUGIN))
    assert built == {
        "trt_profile_min_shapes": "input_ids:1x1,past_key.0:1x2x64x16",
        "trt_profile_opt_shapes": "input_ids:1x8,past_key.0:1x2x64x16",
        "trt_profile_max_shapes": "input_ids:8x256,past_key.0:8x2x64x16",
    }
    assert {name.replace("nv_", "trt_"): shapes for name, shapes in of_plugin.items()} == built


def test_both_get_the_folder_of_their_engines(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert provider_options(PLUGIN, RANGES, tmp_path)["nv_runtime_cache_path"] == folder
    built = provider_options(WHEELS, RANGES, tmp_path)
    assert built["trt_engine_cache_path"] == folder
    assert built["trt_timing_cache_path"] == str(tmp_path.parent), "timings serve every size"
    assert built["trt_engine_cache_enable"] == built["trt_timing_cache_enable"] == "1"


def test_another_gpu_version_or_size_has_engines_of_its_own(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModelPackage.open(demo_folder)
    newer = TensorRt(WHEELS.provider, "TensorRT 10.17.1")
    folders = [engine_folder(package, each, 8, 320) for each in (WHEELS, newer, PLUGIN)]
    folders += [engine_folder(package, WHEELS, *sizes) for sizes in ((16, 320), (8, 4160))]
    monkeypatch.setattr(engine, "gpu_name", lambda: "another GPU")
    folders.append(engine_folder(package, WHEELS, 8, 320))
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (Session((WHEELS.provider, ["MatMul", "Add"])), None),
        (
            Session((WHEELS.provider, ["MatMul"]), ("CPUExecutionProvider", ["Attention", "Add"])),
            r"^TensorrtExecutionProvider does not run 2 nodes of this graph \(Attention, Add\): use --provider cuda",
        ),
        (
            Session((WHEELS.provider, ["MatMul"]), (WHEELS.provider, ["Add"])),
            r"takes this graph in 2 parts instead of one: use --provider cuda",
        ),
    ],
)
def test_a_graph_that_is_not_taken_whole_is_refused(
    session: Session, words: str | None, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never silently on the CPU, and never on CUDA, which such a session does not know."""
    calls: list[Any] = []

    def load(*arguments: Any) -> Session:
        calls.extend(arguments)
        return session

    monkeypatch.setattr(engine, "load_session", load)
    package = ModelPackage.open(demo_folder)
    if words is None:
        assert open_engine(package, WHEELS, 1, 8, 320) is session
    else:
        with pytest.raises(ProviderError, match=words):
            open_engine(package, WHEELS, 1, 8, 320)
    _, options, provider, settings = calls
    assert provider == WHEELS.provider
    assert "past_key.0:8x2x320x64" in settings["trt_profile_max_shapes"]
    assert options.get_session_config_entry("session.record_ep_graph_assignment_info") == "1"
    assert Path(settings["trt_engine_cache_path"]).is_dir()


def test_the_plugins_devices_get_the_same(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def load(*arguments: Any) -> Session:
        calls.extend(arguments)
        return Session((PLUGIN.provider, ["MatMul"]))

    monkeypatch.setattr(engine, "load_on_devices", load)
    open_engine(ModelPackage.open(demo_folder), PLUGIN, 1, 8, 320)
    _, _, devices, provider, settings = calls
    assert (devices, provider) == (PLUGIN.devices, PLUGIN.provider)
    assert "past_key.0:8x2x320x64" in settings["nv_profile_max_shapes"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_engines_that_others_could_write_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "cache_folder", lambda: tmp_path / "cache")
    folder = tmp_path / "cache" / "engines" / "key"
    assert engine._made_folder(folder) == folder
    folder.parent.chmod(0o770)
    with pytest.warns(UserWarning, match=r"engines' can be written by its group or others, .*: `chmod go-w` it\.$"):
        assert engine._made_folder(folder) is None


def test_a_cache_that_cannot_be_written_is_done_without(demo_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert engine._made_folder(tmp_path / "file" / "engines") is None


FAKE_PLUGIN = SimpleNamespace(
    __version__="0.5.0", get_ep_name=lambda: "RtxExecutionProvider", get_library_path=lambda: "plugin.so"
)
CPU_DEVICE, RTX_DEVICE = (SimpleNamespace(ep_name=name) for name in ("CPUExecutionProvider", "RtxExecutionProvider"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One with all that CUDA needs, and no TensorRT."""
    monkeypatch.setattr(libraries, "cuda_obstacle", lambda: None)
    monkeypatch.setattr(libraries, "has_cuda", lambda: True)
    monkeypatch.setattr(libraries, "INSTALLED_WHEEL", "onnxruntime-gpu 1.31.1")
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    return monkeypatch


@pytest.fixture
def plugin(machine: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Its devices, as ONNX Runtime lists them, to be changed."""
    devices = [CPU_DEVICE, RTX_DEVICE]
    fake = SimpleNamespace(
        register_execution_provider_library=lambda name, path: None, get_ep_devices=lambda: list(devices)
    )
    machine.setattr(libraries, "ort", fake)
    machine.setattr(libraries, "find_spec", lambda name: object())
    machine.setattr(libraries, "import_module", lambda name: FAKE_PLUGIN)
    machine.setattr(libraries, "_plugin_devices", libraries._plugin_devices.__wrapped__)
    return devices


def _libraries(monkeypatch: pytest.MonkeyPatch, version: int, missing: str = "") -> None:
    library = SimpleNamespace(getInferLibVersion=lambda: version)
    monkeypatch.setattr(libraries, "_load", lambda name: None if name == missing else library)


def test_what_cuda_lacks_is_shown_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "cuda_obstacle", lambda: "There is no GPU: use --provider cpu.")
    assert tensorrt_obstacle() == "There is no GPU: use --provider cpu."


@pytest.mark.parametrize(
    ("installed", "version", "missing", "words"),
    [
        ({}, 101601, "", None),
        ({}, 101501, "libnvinfer.so.10", "TensorRT 10, but libnvinfer.so.10 is missing: pip install 'tensorrt-cu13-l"),
        ({"tensorrt": "11.4.0"}, 0, "libnvinfer.so.10", "TensorRT 10, and tensorrt 11.4.0 is here, but libnvinfer.so"),
        ({}, 101601, "libnvonnxparser.so.10", "libnvonnxparser.so.10 is missing"),
        ({}, 101401, "", "TensorRT 10.14.1 updates no cache in place: pip install 'tensorrt-cu13-libs>=10.15,<11'."),
    ],
)
def test_missing_libraries_are_named_with_what_brings_them(
    installed: dict[str, str], version: int, missing: str, words: str | None, machine: pytest.MonkeyPatch
) -> None:
    _libraries(machine, version, missing)
    machine.setattr(libraries, "_version", installed.get)
    obstacle = tensorrt_obstacle()
    assert obstacle is None if words is None else words in (obstacle or "")
    assert has_tensorrt() == bool(installed)


def test_libraries_of_python_packages_are_found(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    machine.setattr(libraries, "find_spec", lambda name: spec if name == "tensorrt_libs" else None)
    calls = []

    def load(path: str) -> object:
        calls.append(path)
        if len(calls) == 1:
            raise OSError
        return object()

    machine.setattr("ctypes.CDLL", load)
    assert libraries._load("libnvinfer.so.10") is not None
    assert calls == ["libnvinfer.so.10", str(tmp_path / "libnvinfer.so.10")]


def test_what_is_nowhere_is_none(machine: pytest.MonkeyPatch) -> None:
    machine.setattr("ctypes.CDLL", Mock(side_effect=OSError))
    assert libraries._load("libnvinfer.so.10") is None
    assert libraries._version("no-such-wheel") is None
    assert libraries._version("pytest") == pytest.__version__


def test_the_plugin_runs_where_it_is_installed(plugin: list[SimpleNamespace]) -> None:
    assert tensorrt_obstacle() is None
    assert has_tensorrt()
    expected = TensorRt("RtxExecutionProvider", "onnxruntime-ep-nv-tensorrt-rtx 0.5.0", [RTX_DEVICE])
    assert libraries.installed_tensorrt() == expected


def test_else_the_wheels_own_does(machine: pytest.MonkeyPatch) -> None:
    _libraries(machine, 101601)
    assert libraries.installed_tensorrt() == TensorRt("TensorrtExecutionProvider", "TensorRT 10.16.1")


def test_a_plugin_without_a_gpu_of_its_kind_says_so(plugin: list[SimpleNamespace]) -> None:
    plugin.remove(RTX_DEVICE)
    obstacle = tensorrt_obstacle()
    assert obstacle is not None
    assert obstacle.startswith("onnxruntime-ep-nv-tensorrt-rtx finds no GPU of its kind")


def test_a_plugin_that_does_not_load_says_why(plugin: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise RuntimeError("libcuda.so.1: cannot open\nmore")

    monkeypatch.setattr(libraries, "import_module", load)
    obstacle = tensorrt_obstacle()
    assert obstacle is not None
    assert "cannot be loaded (libcuda.so.1: cannot open): pip uninstall" in obstacle
