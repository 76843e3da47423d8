"""Asking for TensorRT: which of the two runs, and what is missing, in one sentence."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from reader_edge_tensorrt import libraries
from reader_edge_tensorrt.libraries import TensorRt, has_tensorrt, tensorrt_obstacle

PLUGIN = SimpleNamespace(
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
    machine.setattr(libraries, "import_module", lambda name: PLUGIN)
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


def test_a_plugin_that_cannot_be_loaded_says_why(
    plugin: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> None:
        raise RuntimeError("libcuda.so.1: cannot open\nmore")

    monkeypatch.setattr(libraries, "import_module", load)
    obstacle = tensorrt_obstacle()
    assert obstacle is not None
    assert "cannot be loaded (libcuda.so.1: cannot open): pip uninstall" in obstacle
