"""Passes as WebGPU gets them, on the CPU provider in its place: of few widths, with what they see of the past."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reader_edge_export.sources.architectures import check_form
from reader_edge_runtime.errors import ConfigError, ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_rows_runner import HostRowsRunner
from reader_edge_runtime.execution.onnxruntime.session import check_placement, load_session, session_options
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.execution.rows.rows_target import RowsTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_webgpu import webgpu_rows_runner
from reader_edge_webgpu.plugin import webgpu_obstacle
from reader_edge_webgpu.webgpu_rows_runner import SIZES, WebGpuRowsRunner, open_webgpu
from tests.export.exported.test_row_packages import tree_logits
from tests.tiny_models import TINY_MODELS, tiny_config

Exported = Callable[..., Path]


def has_portable_form(name: str) -> bool:
    try:
        check_form(tiny_config(name), "fp32", "portable")
    except ConfigError:
        return False
    return True


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(graph: Path, options: ort.SessionOptions, *_: object) -> ort.InferenceSession:
        return load_session(graph, options, "CPUExecutionProvider")

    monkeypatch.setattr(webgpu_rows_runner, "devices", list)
    monkeypatch.setattr(webgpu_rows_runner, "load_on_devices", load)
    monkeypatch.setattr(webgpu_rows_runner, "check_placement", lambda *_: [])
    monkeypatch.setattr(webgpu_rows_runner, "plugin_version", lambda: "onnxruntime-ep-webgpu 0.4.0")


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize(("name", "precision"), [("llama", "fp32"), ("gemma2", "fp32"), ("llama", "fp16")])
def test_passes_are_padded_and_compute_the_same(name: str, precision: str, exported: Exported) -> None:
    package = ModelPackage.open(exported(name, precision, "portable"))
    target = open_webgpu(package, 1)
    expected = tree_logits(RowsTarget(HostRowsRunner(package, 1)))
    np.testing.assert_allclose(tree_logits(target), expected, atol=1e-5)
    widths = [WebGpuRowsRunner(package, 1).width_for(num_nodes) for num_nodes in (1, 3, 17, 64, 100)]
    assert widths == [1, 4, 32, 64, 64]
    assert "onnxruntime-ep-webgpu 0.4.0" in target.pass_facts


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in TINY_MODELS if has_portable_form(name)])
def test_every_architecture_runs_on_the_gpu_that_is_here(name: str, exported: Exported) -> None:
    obstacle = webgpu_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    package = ModelPackage.open(exported(name, "fp32", "portable"))
    expected = tree_logits(RowsTarget(HostRowsRunner(package, 1)))
    np.testing.assert_allclose(tree_logits(open_webgpu(package, 1)), expected, atol=1e-5 * np.abs(expected).max())


def test_packages_of_other_attention_are_refused(exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", "fp32", "exact"))
    with pytest.raises(ProviderError, match=r"has exact attention in fp32, .* --attention portable"):
        open_webgpu(package)


def test_the_cpu_may_compute_sizes_and_nothing_else(exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", "fp32", "portable"))
    options = session_options(1)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = load_session(package.path("model.onnx"), options, "CPUExecutionProvider")
    with pytest.raises(ProviderError, match="WebGpuExecutionProvider does not run") as caught:
        check_placement(session, "WebGpuExecutionProvider", SIZES)
    assert "MatMul" in str(caught.value) or "Mul" in str(caught.value)
    operators = {name.split()[0] for name in check_placement(session, "CPUExecutionProvider")}
    assert operators & SIZES
