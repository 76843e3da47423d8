"""Native kernels: the bits of the package's own definitions, for every width, tree and batch; off where told."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from reader_edge_export.operators.definitions import OPERATOR_DOMAIN
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import cpu_options
from reader_edge_runtime.machine import processor
from reader_edge_runtime.measuring.cost_cache import cost_path
from reader_edge_runtime.package.manifest import GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.runtime.execution.native_operator import needs_kernels

Arrays = Sequence[npt.NDArray[np.generic]]

pytestmark = [needs_kernels, pytest.mark.usefixtures("instructions")]


@pytest.fixture(scope="module")
def targets(demo_folder: Path, instructions: str) -> tuple[HostTarget, HostTarget]:
    """The demo package by its own definitions, and with native kernels."""
    package = ModelPackage.open(demo_folder)
    with pytest.MonkeyPatch.context() as patch:  # pytest's workers have one core
        patch.setattr(processor, "num_usable_cores", lambda: 2)
        pure, native = (HostTarget.open(package, 2, uses_native) for uses_native in (False, True))
    assert not pure.is_native
    assert native.is_native
    assert native.instructions == instructions
    return pure, native


@pytest.mark.long
@pytest.mark.parametrize(("past", "widths"), [(29, range(1, 65)), (0, (1, 2, 16, 33)), (300, (1, 7, 16, 64))])
def test_native_bits_equal_pure_bits_at_every_width(
    past: int, widths: Sequence[int], targets: tuple[HostTarget, HostTarget]
) -> None:
    rng = np.random.default_rng(past)
    for num_nodes in widths:
        tree = _random_tree(num_nodes, rng)
        _assert_equal(*(_pass(target, past, [tree]) for target in targets))


@pytest.mark.parametrize("num_nodes", [1, 5, 16])
def test_native_bits_equal_pure_bits_in_a_ragged_batch(num_nodes: int, targets: tuple[HostTarget, HostTarget]) -> None:
    rng = np.random.default_rng(num_nodes)
    trees = [_random_tree(num_nodes, rng), _random_tree(max(1, num_nodes // 2), rng)]
    _assert_equal(*(_pass(target, 70, trees) for target in targets))


def test_native_bits_equal_pure_bits_in_a_prefill(targets: tuple[HostTarget, HostTarget]) -> None:
    _assert_equal(*(_pass(target, 256, [DraftTree.chain(list(range(200)))]) for target in targets))


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(8, 1), (100, 37), (64, 4), (896, 130), (4864, 3)])
def test_row_linear_keeps_the_bits_at_odd_sizes(
    num_inputs: int, num_outputs: int, demo_folder: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(num_inputs)
    graph = _one_product(demo_folder / GRAPH_NAME, num_inputs, num_outputs, tmp_path, rng)
    pure, native = (_session(graph, library) for library in (None, native_library()))
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 13, 64, 200):
        rows = rng.standard_normal((2, num_rows, num_inputs)).astype(np.float32)
        rows[0, 0] = 0
        rows[1, 0] *= 1e-12
        _assert_equal(pure.run(None, {"rows": rows}), native.run(None, {"rows": rows}))


def test_sizes_that_do_not_fit_are_refused(demo_folder: Path, tmp_path: Path) -> None:
    graph = _one_product(demo_folder / GRAPH_NAME, 16, 4, tmp_path, np.random.default_rng(0))
    with pytest.raises(Exception, match="do not fit"):
        _session(graph, native_library()).run(None, {"rows": np.zeros((1, 2, 17), np.float32)})


def test_an_engine_says_whether_kernels_are_native_and_can_leave_them_out(demo_folder: Path) -> None:
    config = EngineConfig(is_calibrated=False, is_probed=False)
    native = Engine.load(demo_folder, config)
    pure = Engine.load(demo_folder, EngineConfig(is_calibrated=False, is_probed=False, uses_native=False))
    assert (native.decoder.target.is_native, pure.decoder.target.is_native) == (True, False)
    answers = [engine.generate("# tar", GenerationConfig(max_tokens=40)).token_ids for engine in (native, pure)]
    assert answers[0] == answers[1]


def test_pass_times_are_kept_apart(targets: tuple[HostTarget, HostTarget]) -> None:
    assert cost_path(targets[0], 2, 1) != cost_path(targets[1], 2, 1)


def _random_tree(num_nodes: int, rng: np.random.Generator) -> DraftTree:
    tree = DraftTree.root(int(rng.integers(1000)))
    for node in range(1, num_nodes):
        tree.add(int(rng.integers(1000)), int(rng.integers(max(0, node - 5), node)), "")
    return tree


def _pass(target: HostTarget, past: int, trees: Sequence[DraftTree]) -> Arrays:
    """What a pass says and what it leaves in the cache, after `past` random rows."""
    num_slots, num_nodes = len(trees), max(map(len, trees))
    cache = HostCache(target.manifest, num_slots, past + num_nodes)
    seed = int(hashlib.sha256(f"{past} {num_slots}".encode()).hexdigest()[:8], 16)
    cache.slab[:] = np.random.default_rng(seed).standard_normal(cache.slab.shape)
    cache.lengths[:] = [past - slot * (past // 2) for slot in range(num_slots)]
    result = target.forward(cache, Pass(0, trees, [range(len(tree)) for tree in trees], wants_logits=True))
    return result.wanted_logits.copy(), result.top_ids, cache.slab


def _assert_equal(left: Arrays, right: Arrays) -> None:
    for ours, theirs in zip(left, right, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _one_product(
    package_graph: Path, num_inputs: int, num_outputs: int, folder: Path, rng: np.random.Generator
) -> Path:
    """A graph of one RowLinear, by the definition that the package carries."""
    model = onnx.load(package_graph, load_external_data=False)
    definition = next(function for function in model.functions if function.name == "RowLinear")
    weight = rng.integers(-127, 128, (num_outputs, num_inputs)).astype(np.int8)
    scales = rng.random(num_outputs).astype(np.float32)
    node = helper.make_node("RowLinear", ["rows", "weight", "scales"], ["output"], domain=OPERATOR_DOMAIN)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, ["B", "N", "K"])],
        [helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, ["B", "N", num_outputs])],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(scales, "scales")],
    )
    model = helper.make_model(graph, opset_imports=model.opset_import, functions=[definition], ir_version=11)
    onnx.save(model, folder / "product.onnx")
    return folder / "product.onnx"


def _session(graph: Path, library: Path | None) -> ort.InferenceSession:
    options = cpu_options(0)
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
