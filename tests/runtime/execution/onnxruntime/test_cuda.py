"""Asking for CUDA: what is missing is one sentence, and nothing falls back silently; tensors at a fixed address."""

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reader_edge_runtime import Engine, EngineConfig
from reader_edge_runtime.errors import ConfigError, ProviderError
from reader_edge_runtime.execution import providers
from reader_edge_runtime.execution.onnxruntime import session as provider
from reader_edge_runtime.execution.onnxruntime.device import cuda
from reader_edge_runtime.execution.onnxruntime.device.buckets import (
    TREE_SIZES,
    padding_rows,
    tree_bucket,
    visible_bucket,
)
from reader_edge_runtime.execution.onnxruntime.device.device_cache import ELEMENT_TYPES, DeviceArray, host_type
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage


class Driver:
    """An NVIDIA driver as it looks through ctypes."""

    def __init__(self, status: int = 0, devices: int = 1, version: int = 13000, architecture: tuple[int, int] = (8, 9)):
        self._status = status
        self.cuDeviceGetCount = lambda out: self._give(out, devices)
        self.cuDriverGetVersion = lambda out: self._give(out, version)
        self.cuDeviceGetName = lambda out, size, device: setattr(out, "value", b"NVIDIA Example 1")
        self.cuDeviceGetAttribute = lambda out, which, device: self._give(out, architecture[which - 75])

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self._status

    @staticmethod
    def _give(out: Any, value: int) -> int:
        out._obj.value = value
        return 0


@pytest.fixture
def cuda_wheel(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The GPU wheel, its libraries found."""
    loaded: list[bool] = []
    fake = SimpleNamespace(
        get_available_providers=lambda: [provider.CUDA, provider.CPU], preload_dlls=lambda: loaded.append(True)
    )
    monkeypatch.setattr(cuda, "ort", fake)
    monkeypatch.setattr(cuda, "INSTALLED_WHEEL", "onnxruntime-gpu 1.31.1")
    monkeypatch.setattr(cuda, "_CONTAINERS", ())
    return monkeypatch


def _libraries(monkeypatch: pytest.MonkeyPatch, driver: Driver | None, missing: str = "") -> None:
    def load(name: str) -> object:
        if name == "libcuda.so.1":
            return driver
        return None if name == missing else ctypes.pythonapi

    monkeypatch.setattr(cuda, "_load", load)


def test_the_cpu_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "ort", SimpleNamespace(get_available_providers=lambda: [provider.CPU]))
    monkeypatch.setattr(cuda, "INSTALLED_WHEEL", "onnxruntime 1.31.1")
    assert cuda.cuda_obstacle() == (
        "The installed wheel, onnxruntime 1.31.1, has no CUDA: "
        "pip uninstall onnxruntime, then pip install 'reader-edge[gpu]'."
    )


def test_where_pypi_has_no_wheel_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "ort", SimpleNamespace(get_available_providers=lambda: [provider.CPU]))
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    obstacle = cuda.cuda_obstacle()
    assert obstacle is not None
    assert "PyPI has no such wheel for aarch64" in obstacle
    assert "pip" not in obstacle


def test_a_wheel_for_another_cuda_is_named(cuda_wheel: pytest.MonkeyPatch) -> None:
    wheel = SimpleNamespace(get_available_providers=lambda: [provider.CUDA], cuda_version="12.8")
    cuda_wheel.setattr(cuda, "ort", wheel)
    obstacle = cuda.cuda_obstacle()
    assert obstacle is not None
    assert obstacle.startswith("onnxruntime-gpu 1.31.1 was built for CUDA 12.8, reader-edge is made for CUDA 13:")


def test_libraries_of_another_cuda_are_named(cuda_wheel: pytest.MonkeyPatch) -> None:
    _libraries(cuda_wheel, Driver(), missing="libcublasLt.so.13")
    obstacle = cuda.cuda_obstacle()
    assert obstacle is not None
    assert "libcublasLt.so.13 is missing (libcublasLt.so.12 is here, which this wheel cannot use)" in obstacle


def test_a_container_without_its_gpus_learns_how_to_get_them(cuda_wheel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda_wheel.setattr(cuda, "_CONTAINERS", (tmp_path,))
    _libraries(cuda_wheel, None)
    obstacle = cuda.cuda_obstacle()
    assert obstacle is not None
    assert "docker run --gpus all" in obstacle


@pytest.mark.parametrize(
    ("driver", "missing", "words"),
    [
        (None, "", "no NVIDIA driver here"),
        (Driver(status=100), "", r"finds no GPU \(status 100\)"),
        (Driver(devices=0), "", "finds no GPU"),
        (Driver(version=12040), "", r"supports CUDA 12\.4, onnxruntime-gpu 1\.31\.1 needs CUDA 13"),
        (Driver(architecture=(7, 0)), "", r"compute capability 7\.0, .* is built for 7\.5, 8\.0"),
        (Driver(architecture=(11, 0)), "", r"compute capability 11\.0"),
        (Driver(), "libcublas.so.13", r"libcublas\.so\.13 is missing"),
        (Driver(), "libcudnn.so.9", r"libcudnn\.so\.9 is missing"),
    ],
)
def test_a_missing_part_is_named(
    driver: Driver | None, missing: str, words: str, cuda_wheel: pytest.MonkeyPatch
) -> None:
    _libraries(cuda_wheel, driver, missing)
    obstacle = cuda.cuda_obstacle()
    assert obstacle is not None
    assert re.search(words, obstacle)
    assert "\n" not in obstacle
    assert obstacle.endswith(".")


def test_an_unsuited_package_is_refused_first(cuda_wheel: pytest.MonkeyPatch, demo_folder: Path) -> None:
    _libraries(cuda_wheel, None)
    with pytest.raises(ProviderError, match=r"is made for the CPU \(int8, exact attention\): export it"):
        Engine.load(demo_folder, EngineConfig(provider="cuda"))


def test_nothing_is_missing_on_a_good_machine(cuda_wheel: pytest.MonkeyPatch) -> None:
    _libraries(cuda_wheel, Driver())
    assert cuda.cuda_obstacle() is None


def test_a_gpu_and_its_driver_have_a_name(cuda_wheel: pytest.MonkeyPatch) -> None:
    _libraries(cuda_wheel, Driver())
    assert cuda.gpu_name() == "NVIDIA Example 1, driver for CUDA 13000"
    for driver in (None, Driver(status=100)):
        _libraries(cuda_wheel, driver)
        assert cuda.gpu_name() == ""


@pytest.mark.parametrize(("architecture", "fits"), [((7, 5), True), ((8, 7), True), ((9, 0), True), ((6, 1), False)])
def test_kernels_run_on_their_own_major_version(architecture: tuple[int, int], fits: bool) -> None:
    assert cuda.is_built_for(architecture) == fits


def test_a_package_for_the_cpu_is_not_run_on_cuda(cuda_wheel: pytest.MonkeyPatch, demo_folder: Path) -> None:
    _libraries(cuda_wheel, Driver())
    package = ModelPackage.open(demo_folder)
    assert providers.open_target(package, EngineConfig()).provider == provider.CPU
    with pytest.raises(ProviderError, match="made for the CPU"):
        providers.open_target(package, EngineConfig(provider="cuda"))


@pytest.mark.long
def test_a_provider_that_onnx_runtime_replaces_is_refused(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes another one with a warning only, where a library is missing."""
    monkeypatch.setattr("onnxruntime.InferenceSession.get_providers", lambda self: ["OtherExecutionProvider"])
    with pytest.raises(ProviderError, match="on OtherExecutionProvider instead of CPUExecutionProvider"):
        provider.open_session(demo_folder / GRAPH_NAME, 1)


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of cpu, cuda"):
        EngineConfig(provider="tpu")


class Session:
    """A session as far as its placement: (provider, operator, name) of each node."""

    def __init__(self, *nodes: tuple[str, str, str]) -> None:
        self._nodes = nodes

    def get_provider_graph_assignment_info(self) -> list[Any]:
        nodes = [(ep_name, SimpleNamespace(op_type=op, name=name)) for ep_name, op, name in self._nodes]
        return [SimpleNamespace(ep_name=ep_name, get_nodes=lambda node=node: [node]) for ep_name, node in nodes]


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (
            [(provider.CUDA, "MatMul", "product"), (provider.CPU, "Concat", "sizes")],
            r"^CUDAExecutionProvider does not run 1 nodes of this graph \(Concat sizes\)",
        ),
        (
            [(provider.CUDA, "MatMul", "product"), (provider.CUDA, "Shape", "size_of_mask")],
            r"^CUDAExecutionProvider would copy between host and device, .* 1 nodes .* \(Shape size_of_mask\)",
        ),
    ],
)
def test_a_copy_between_host_and_device_is_refused_with_a_name(
    nodes: list[tuple[str, str, str]], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime itself refuses to capture a graph with Memcpy nodes, in these words, and names none."""

    def load(graph: Path, options: object, name: str, settings: dict[str, str] | None = None) -> Session:
        if settings is not None and settings["enable_cuda_graph"] == "1":
            raise ProviderError(
                "ONNX Runtime cannot load 'g': This session cannot use the graph capture feature as requested by the "
                f"user  as all compute graph nodes have not been partitioned to the {name}"
            )
        return Session(*nodes)

    monkeypatch.setattr(provider, "load_session", load)
    with pytest.raises(ProviderError, match=words):
        provider.load_placed(Path("g"), provider.session_options(1), provider.CUDA)


def test_other_refusals_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*arguments: object) -> Session:
        raise ProviderError("ONNX Runtime cannot load 'g': no memory")

    monkeypatch.setattr(provider, "load_session", load)
    with pytest.raises(ProviderError, match="no memory"):
        provider.load_placed(Path("g"), provider.session_options(1), provider.CUDA)


def test_buckets_hold_what_they_are_for() -> None:
    assert [tree_bucket(size) for size in (1, 2, 3, 33, 64, 65, 256)] == [1, 2, 4, 64, 64, 128, 256]
    assert set(map(tree_bucket, range(1, 65))) == set(TREE_SIZES)
    visible = [visible_bucket(num, 1 << 20) for num in range(1, 9000)]
    assert all(size >= num for num, size in enumerate(visible, start=1))
    assert all(size % 8 == 0 for size in visible)
    assert len(set(visible)) == 16, "few sizes to capture"
    assert all(size <= 1.5 * max(num, 64) for num, size in enumerate(visible, start=1))
    for length in (1, 100, 4096):  # a padded tree behind a full slot still fits
        rows = padding_rows(length)
        assert rows % 8 == 0
        assert all(length - size + tree_bucket(size) <= rows for size in range(1, 65))
        assert visible_bucket(length + 32, rows) <= rows


@pytest.mark.parametrize("data_type", ELEMENT_TYPES)
def test_what_was_written_is_read_at_the_same_address(data_type: str) -> None:
    memory = DeviceArray("cpu", data_type, (2, 3))
    address = memory.address
    for first in (0, 5):
        array = np.arange(first, first + 6).reshape(2, 3).astype(host_type(data_type))
        memory.write(array)
        found = memory.read()
        assert (found.dtype, found.tolist(), memory.address) == (array.dtype, array.tolist(), address)
    assert memory.num_bytes == 6 * np.dtype(host_type(data_type)).itemsize


def test_an_array_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"an array \(3, 2\) for a tensor \(2, 3\)"):
        DeviceArray("cpu", "float32", (2, 3)).write(np.zeros((3, 2), np.float32))


def test_memory_that_cannot_be_had_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"4\.0 GB of memory on nowhere cannot be had: lower max_batch\."):
        DeviceArray("nowhere", "float32", (10**9,))
