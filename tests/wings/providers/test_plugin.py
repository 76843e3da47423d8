"""What the WebGPU plugin lacks is one sentence with its remedy, without a GPU and without the plugin."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_webgpu import plugin


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    plugin.devices.cache_clear()
    yield
    plugin.devices.cache_clear()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A plugin that is installed; what it was registered by."""
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(plugin, "has_plugin", lambda: True)
    monkeypatch.setattr(plugin, "plugin_version", lambda: "onnxruntime-ep-webgpu 0.4.0")
    monkeypatch.setitem(sys.modules, plugin._MODULE, SimpleNamespace(get_library_path=lambda: "here.so"))
    monkeypatch.setattr(ort, "register_execution_provider_library", lambda *given: calls.append(given))
    monkeypatch.setattr(ort, "get_ep_devices", lambda: [SimpleNamespace(ep_name="CPUExecutionProvider")])
    return calls


def test_a_missing_plugin_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert plugin.webgpu_obstacle() == (
        "onnxruntime-ep-webgpu is not installed: pip install 'reader-edge[webgpu]', or use --provider cpu."
    )


def test_without_a_gpu_the_driver_is_named(registered: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    obstacle = plugin.webgpu_obstacle()
    assert obstacle is not None
    assert obstacle.startswith("WebGPU finds no GPU here: install Vulkan")
    monkeypatch.setattr("platform.system", lambda: "Windows")
    assert plugin.webgpu_obstacle() == ("WebGPU finds no GPU here: install the GPU's driver, or use --provider cpu.")
    assert registered == [("webgpu", "here.so")]  # once in a process


def test_a_broken_library_is_one_sentence(registered: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> None:
        raise RuntimeError("libvulkan.so.1: cannot open shared object file\nmore")

    monkeypatch.setattr(ort, "register_execution_provider_library", refuse)
    assert plugin.webgpu_obstacle() == (
        "ONNX Runtime cannot load onnxruntime-ep-webgpu 0.4.0 (libvulkan.so.1: cannot open shared object file): "
        "pip install --upgrade 'reader-edge[webgpu]', or use --provider cpu."
    )


def test_a_gpu_is_no_obstacle(registered: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_ep_devices", lambda: [SimpleNamespace(ep_name=plugin.WEBGPU)])
    assert plugin.webgpu_obstacle() is None
    assert len(plugin.devices()) == len(registered) == 1
