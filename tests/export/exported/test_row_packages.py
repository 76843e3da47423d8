"""Packages whose new KV rows are results: they compute what others do, in passes of any width, with the same bits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime import EngineConfig
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_rows_runner import HostRowsRunner
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.execution.rows.rows_target import RowsTarget
from reader_edge_runtime.measuring.width_probe import probe_width
from reader_edge_runtime.package.manifest import WEIGHTS_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target

Exported = Callable[..., Path]

PROMPTS = [[5, 9, 13, 21, 34, 55, 89, 40, 41], [7, 11, 200]]
TREES = [DraftTree([8, 9, 10, 11, 12], [-1, 0, 0, 1, 2], [""] * 5), DraftTree([40, 41, 42], [-1, 0, 1], [""] * 3)]


class OfWidth(HostRowsRunner):
    """A runner whose passes all have the same width, as modules compiled for one have."""

    def __init__(self, package: ModelPackage, width: int) -> None:
        super().__init__(package, 1)
        self._width = width

    def width_for(self, num_nodes: int) -> int:
        return self._width


@pytest.fixture(params=["llama", "gemma2"])
def package(request: pytest.FixtureRequest, exported: Exported) -> ModelPackage:
    """gemma2 has windowed layers and capped scores."""
    return ModelPackage.open(exported(request.param, "fp32", "portable-exact"))


def test_they_compute_what_packages_do_whose_cache_is_updated_in_place(
    package: ModelPackage, exported: Exported
) -> None:
    other = ModelPackage.open(exported(package.manifest.architecture, "fp32", "exact"))
    expected = tree_logits(HostTarget.open(other, 1))
    np.testing.assert_allclose(tree_logits(open_target(package, EngineConfig(threads=1))), expected, atol=1e-5)
    assert package.manifest.checks["tree_rows_equal"] == 1.0


@pytest.mark.parametrize("width", [1, 3, 8])
def test_a_pass_in_parts_or_padded_has_the_bits_of_the_whole(package: ModelPackage, width: int) -> None:
    whole, parts = (RowsTarget(runner) for runner in (HostRowsRunner(package, 1), OfWidth(package, width)))
    np.testing.assert_array_equal(tree_logits(parts), tree_logits(whole))


def test_a_row_that_is_asked_for_several_times_is_given_as_often(package: ModelPackage) -> None:
    target = RowsTarget(OfWidth(package, 3))
    cache = target.new_cache(2, 16)
    wanted = Pass(0, TREES, [[4], [0, 1, 1, 2, 2, 2]], wants_logits=True)
    logits = target.forward(cache, wanted).wanted_logits
    whole = target.forward(cache, Pass(0, TREES, [[4], [0, 1, 2]], wants_logits=True)).wanted_logits
    np.testing.assert_array_equal(logits[1], whole[1][[0, 1, 1, 2, 2, 2]])
    np.testing.assert_array_equal(logits[0], np.repeat(whole[0][:1], 6, axis=0))


def test_they_keep_their_bits_in_trees(package: ModelPackage) -> None:
    assert probe_width(open_target(package, EngineConfig(threads=1))).is_invariant


def test_the_last_rows_of_the_context_have_room_for_padding(package: ModelPackage) -> None:
    max_context = package.manifest.max_context
    for target in (RowsTarget(HostRowsRunner(package, 1)), RowsTarget(OfWidth(package, 64))):
        cache = target.new_cache(1, max_context)
        cache.assume(0, max_context - 1)
        logits = target.forward(cache, Pass(0, [DraftTree.root(5)], [[0]], wants_logits=True)).wanted_logits
        assert np.isfinite(logits).all()


def test_int8_computes_what_it_does_in_exact_attention(exported: Exported) -> None:
    portable, exact = (ModelPackage.open(exported("llama", "int8", form)) for form in ("portable", "exact"))
    expected = tree_logits(open_target(exact, EngineConfig(threads=1)))
    found = tree_logits(open_target(portable, EngineConfig(threads=1)))
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_in_fp16_matrices_alone_are_rounded(exported: Exported) -> None:
    whole, half = (ModelPackage.open(exported("llama", precision, "portable")) for precision in ("fp32", "fp16"))
    expected = tree_logits(open_target(whole, EngineConfig(threads=1)))
    found = tree_logits(open_target(half, EngineConfig(threads=1)))
    np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())
    assert half.manifest.kv_dtype == "float32"
    assert half.manifest.files[WEIGHTS_NAME].num_bytes < 0.55 * whole.manifest.files[WEIGHTS_NAME].num_bytes


def tree_logits(target: Target) -> Float32Array:
    """Of both trees behind their prompts, those of all nodes (B, N, V)."""
    cache = target.new_cache(2, 16)
    for slot, prompt in enumerate(PROMPTS):
        target.forward(cache, Pass(slot, [DraftTree.chain(prompt)], [[0]]))
        cache.commit(slot, list(range(len(prompt))))
    rows = [list(range(len(tree))) for tree in TREES]
    logits: Float32Array = target.forward(cache, Pass(0, TREES, rows, wants_logits=True)).wanted_logits.copy()
    return logits
