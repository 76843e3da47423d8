"""Sessions on ONNX Runtime: who runs which node is known; a wheel or a graph that does not load is one sentence."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest

from reader_edge_runtime.errors import InstallationError, ProviderError
from reader_edge_runtime.execution.onnxruntime import wheel
from reader_edge_runtime.execution.onnxruntime.session import (
    CPU,
    NOT_CAPTURED,
    check_placement,
    cpu_options,
    load_on_devices,
    load_placed,
    load_session,
    run_options,
)
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.package.manifest import GRAPH_NAME


@pytest.mark.long
def test_a_graph_is_loaded_on_devices_and_its_nodes_are_theirs(demo_folder: Path) -> None:
    devices = [each for each in ort.get_ep_devices() if each.ep_name == CPU]
    session = load_on_devices(demo_folder / GRAPH_NAME, cpu_options(1), devices[:1], CPU)
    placed = load_placed(demo_folder / GRAPH_NAME, cpu_options(1), CPU)
    assert check_placement(session, CPU) == check_placement(placed, CPU) != []


def test_nodes_that_run_elsewhere_are_named(demo_folder: Path) -> None:
    session = load_placed(demo_folder / GRAPH_NAME, cpu_options(1), CPU)
    names = check_placement(session, CPU)
    sentence = rf"Other does not run {len(names)} nodes of this graph \(.*\): do this\."
    with pytest.raises(ProviderError, match=sentence) as refused:
        check_placement(session, "Other", remedy="do this")
    assert names[0] in str(refused.value)
    assert check_placement(session, "Other", spared={name.split()[0] for name in names}) == names


def test_what_cannot_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "graph").write_bytes(b"no graph")
    with pytest.raises(ProviderError, match=r"ONNX Runtime cannot load '.*graph' on CPUExecutionProvider: .+"):
        load_on_devices(tmp_path / "graph", cpu_options(1), [], CPU)
    with pytest.raises(ProviderError, match=r"ONNX Runtime cannot load '.*graph': .+"):
        load_placed(tmp_path / "graph", cpu_options(1), CPU)


@pytest.mark.parametrize("error", [RuntimeError("Exception during initialization: std::bad_alloc"), MemoryError()])
def test_a_model_without_memory_may_be_split(
    error: Exception, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "InferenceSession", Mock(side_effect=error))
    with pytest.raises(
        ProviderError, match=r"load '.*model.onnx' takes more memory than is free: .*`reader-edge split`"
    ):
        load_session(demo_folder / GRAPH_NAME, cpu_options(1), CPU)


def test_a_run_is_captured_only_under_an_id() -> None:
    ids = [options.get_run_config_entry("gpu_graph_id") for options in (run_options(), run_options(3))]
    assert ids == [str(NOT_CAPTURED), "3"]


def imported_again() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheel_again", wheel.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_that_loads_is_the_one_that_is_installed() -> None:
    found = imported_again()
    assert (found.ort, found.INSTALLED_WHEEL) == (wheel.ort, wheel.installed_wheel())


@pytest.mark.parametrize(
    ("module", "reason"),
    [(SimpleNamespace(), "no attribute 'InferenceSession'"), (None, "import of onnxruntime halted")],
)
def test_a_broken_wheel_is_one_sentence(module: object, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    with pytest.raises(InstallationError, match=rf"^onnxruntime\S* \S+ cannot be loaded \(.*{reason}.*\): run"):
        imported_again()
