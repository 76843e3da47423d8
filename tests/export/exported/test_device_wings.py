"""Providers of GPUs simulated on the CPU: the contract of all providers, TensorRT's engines, WebGPU's passes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reader_edge_export.sources.architectures import check_options
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, ProviderError
from reader_edge_runtime.execution.onnxruntime.device.buckets import padding_rows
from reader_edge_runtime.execution.onnxruntime.device.device_target import DeviceTarget
from reader_edge_runtime.execution.onnxruntime.host.host_rows_runner import HostRowsRunner
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.session import check_placement, load_session, session_options
from reader_edge_runtime.execution.onnxruntime.wheel import ort
from reader_edge_runtime.execution.rows.rows_target import RowsTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from reader_edge_tensorrt.engine import shape_ranges
from reader_edge_tensorrt.tensorrt_target import TensorRtTarget
from reader_edge_webgpu import webgpu_rows_runner
from reader_edge_webgpu.plugin import webgpu_obstacle
from reader_edge_webgpu.webgpu_rows_runner import SIZES, WebGpuRowsRunner, open_webgpu
from tests.export.conftest import Exported
from tests.export.exported.simulated_devices import SimulatedEngines
from tests.export.exported.test_device_target import decoded
from tests.export.exported.test_package_forms import tree_logits
from tests.runtime.execution.test_providers import (  # noqa: F401 # collected here with the targets below
    test_best_successors_are_those_of_the_logits,
    test_cache_keeps_the_committed_path_through_growth_swap_and_truncation,
    test_rows_that_were_read_go_on_in_another_slot_of_another_cache,
    test_trees_and_batches_see_their_own_alone,
)
from tests.tiny_models import MAX_CONTEXT, TINY_MODELS, tiny_config

PLAYED: dict[str, Callable[[ModelPackage], Target]] = {
    "cuda": lambda package: DeviceTarget.open_on(package, "cpu", 1),
    "tensorrt": lambda package: SimulatedEngines(package).target(),
}
PACKAGES = {"cuda": [("fp16", "exact"), ("fp32", "fast")], "tensorrt": [("fp16", "fast"), ("fp32", "fast")]}
CASES = [(name, *package) for name, packages in PACKAGES.items() for package in packages]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def target(request: pytest.FixtureRequest, exported: Exported) -> Target:
    name, precision, attention = request.param
    return PLAYED[name](ModelPackage.open(exported("llama", precision, attention, is_checked=False)))


ROWS = padding_rows(MAX_CONTEXT)


@pytest.fixture
def package(exported: Exported) -> ModelPackage:
    return ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False))


def test_decoding_emits_what_the_host_emits(package: ModelPackage) -> None:
    assert decoded(SimulatedEngines(package).target()) == decoded(HostTarget.open(package, 1))


def test_caches_of_one_size_share_an_engine_and_another_size_has_its_own(package: ModelPackage) -> None:
    engines = SimulatedEngines(package)
    target = engines.target()
    caches = [target.with_min_rows(2).new_cache(size, 64) for size in (1, 2, 8)]
    for cache in [*caches, target.new_cache(9, 64)]:
        target.forward(cache, Pass(0, [DraftTree.root(5)], [[0]]))
    assert engines.opened == [(8, ROWS), (16, ROWS)]
    assert target.num_captured == 0


def test_a_cache_that_grows_goes_on_with_another_engine(package: ModelPackage) -> None:
    """Capacities are powers of two, so that few engines are built."""
    package.manifest = replace(package.manifest, max_context=20_000)
    engines = SimulatedEngines(package)
    target = engines.target()
    cache = target.new_cache(1, 1)
    wanted = Pass(0, [DraftTree.chain([5, 6, 7])], [range(3)], wants_logits=True)
    before = target.forward(cache, wanted).wanted_logits.copy()
    cache.reserve(1, 5000)
    assert cache.capacity == 8192
    assert cache.num_bytes_of([5000], 5000) == cache.num_bytes
    after = target.forward(cache, wanted).wanted_logits
    assert abs(after - before).max() <= 2e-3 * abs(before).max()
    assert engines.opened == [(8, padding_rows(4096)), (8, padding_rows(8192))]
    cache.reserve(1, 20_000)
    assert cache.capacity == 20_000, "all of the context is no power of two"


def test_the_version_of_what_builds_engines_is_a_fact_of_its_times(package: ModelPackage) -> None:
    assert "played" in SimulatedEngines(package).target().pass_facts


def test_sizes_of_an_engine_begin_with_a_token_and_end_with_a_full_batch(package: ModelPackage) -> None:
    ranges = shape_ranges(package.manifest, 8, 2112)
    assert ranges["input_ids"] == ((1, 1), (1, 8), (8, 256))
    assert ranges["tree_mask"] == ((1, 1, 1, 64), (1, 1, 8, 1024), (8, 1, 256, 2112))
    assert ranges["past_key.0"] == ((1, 2, 2112, 16), (1, 2, 2112, 16), (8, 2, 2112, 16))
    assert all(least <= likely <= most for each in ranges.values() for least, likely, most in zip(*each, strict=True))


def test_exact_attention_is_refused_since_its_sums_would_be_in_float32(exported: Exported) -> None:
    with pytest.raises(ProviderError, match=r"sums in float64.* --attention fast, or use --provider cuda\.$"):
        TensorRtTarget.open(ModelPackage.open(exported("llama", "fp16", "exact", is_checked=False)))


def test_a_package_for_the_cpu_is_refused(demo_folder: Path) -> None:
    with pytest.raises(ProviderError, match="made for the CPU"):
        TensorRtTarget.open(ModelPackage.open(demo_folder))


def has_portable_form(name: str) -> bool:
    try:
        check_options(tiny_config(name), "fp32", "portable")
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


@pytest.mark.long
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
