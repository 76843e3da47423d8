"""Native kernels: the bits of the package's own definitions, for every width, tree and batch; off where told."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.machine import processor
from reader_edge_runtime.measuring.cost_cache import cost_path
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
