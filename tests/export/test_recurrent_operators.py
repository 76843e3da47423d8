"""Definitions of recurrent operators: along random trees, the bits of a recurrence that knows paths alone."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx_ir.passes import common

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.execution.onnxruntime.session import cpu_options
from reader_edge_runtime.package.graph_file import GraphFile
from tests.recurrent_trees import (
    Conv,
    DeltaSizes,
    Feed,
    Step,
    Trees,
    build_delta,
    build_mamba2,
    conv_feed,
    delta_feed,
    delta_inputs,
    delta_step,
    mamba2_feed,
    mamba2_inputs,
    random_trees,
    read,
    scan_step,
    states_along,
    window_behind,
)
from tests.runtime.execution.native_operator import Build, operator_model

NUM_SLOTS = 3
NUM_TRIALS = 12


@pytest.mark.parametrize("sizes", [DeltaSizes(2, 4, 8, 12), DeltaSizes(3, 3, 5, 7), DeltaSizes(1, 3, 16, 1)])
def test_tree_delta_is_the_delta_rule_along_each_path(sizes: DeltaSizes) -> None:
    session = _session(delta_inputs(sizes), build_delta)
    step = functools.partial(delta_step, sizes)
    for trees, rng in _passes():
        feed = delta_feed(rng, sizes, trees, NUM_SLOTS)
        output, present, capsules = session.run(None, feed)
        _check_recurrence(sizes, step, trees, feed, feed["query"], output, present, capsules)
        decay = _check_capsules(capsules, [feed["key"], feed["value"]], sizes.num_heads, [feed["beta"]])
        np.testing.assert_allclose(decay, np.exp(feed["log_decay"]), rtol=1e-6)


@pytest.mark.parametrize("sizes", [DeltaSizes(2, 4, 8, 12), DeltaSizes(1, 6, 5, 7)])
def test_mamba2_is_its_recurrence_along_each_path(sizes: DeltaSizes) -> None:
    session = _session(mamba2_inputs(sizes), build_mamba2)
    step = functools.partial(scan_step, sizes)
    for trees, rng in _passes():
        feed = mamba2_feed(rng, sizes, trees, NUM_SLOTS)
        output, present, capsules = session.run(None, feed)
        x, dt, a, d = (np.asarray(feed[name], np.float32) for name in ("x", "dt", "a", "d"))
        _check_recurrence(sizes, step, trees, feed, feed["c"], output, present, capsules, x * d[:, None])
        decay = _check_capsules(capsules, [feed["b"], x * dt[..., None]], sizes.num_heads, [])
        np.testing.assert_allclose(decay, np.exp(dt * a), rtol=1e-6)


@pytest.mark.parametrize(("num_channels", "num_taps"), [(5, 4), (16, 3), (1, 2)])
def test_tree_conv_sums_a_node_and_its_nearest_ancestors(num_channels: int, num_taps: int) -> None:
    conv = Conv.random(num_channels, num_taps)
    session = _session(conv.inputs(), conv.build)
    for trees, rng in _passes():
        feed = conv_feed(rng, conv, trees, NUM_SLOTS)
        output, present = session.run(None, feed)
        rows, state, pending = (np.asarray(feed[name], np.float32) for name in ("rows", "state", "pending"))
        for b, num_nodes in enumerate(trees.num_nodes):
            window = window_behind(state[b], list(pending[b, : trees.num_pending[b]]))
            for node in range(num_nodes):
                *before, last = trees.path(b, node)
                expected = conv.behind(window_behind(window, list(rows[b, before])), rows[b, last])
                np.testing.assert_array_equal(output[b, node], expected)
            kept = window_behind(window, list(rows[b, : trees.num_kept[b]]))
            np.testing.assert_array_equal(present[b], kept)


def test_what_is_committed_in_pieces_is_what_is_committed_at_once() -> None:
    """A chain in one pass, in passes of one, and with each second node left pending."""
    sizes = DeltaSizes(2, 4, 8, 12)
    session = _session(delta_inputs(sizes), build_delta)
    rng = np.random.default_rng(0)
    chain = Trees(np.arange(9)[None] - 1, np.array([9]), np.array([0]), np.array([9]))
    feed = delta_feed(rng, sizes, chain, NUM_SLOTS)
    whole, present, capsules = session.run(None, feed)
    for num_pending in (0, 1):
        state, outputs = feed["state"], []
        for first in range(num_pending, 9, 1 + num_pending):
            node = {name: array[:, first : first + 1] for name, array in feed.items() if array.ndim > 2}
            known = {"state": state, "pending": capsules[:, first - num_pending : first]}
            tree = {"parents": [[-1]], "num_kept": [1], "num_pending": [num_pending]}
            ints = {name: np.array(value, np.int64) for name, value in tree.items()}
            output, state, _ = session.run(None, {**node, **known, **ints})
            outputs.append(output)
        np.testing.assert_array_equal(np.concatenate(outputs, 1), whole[:, num_pending :: 1 + num_pending])
        if num_pending == 0:
            np.testing.assert_array_equal(state, present)


@pytest.mark.parametrize(
    ("inputs", "build"),
    [
        (delta_inputs(DeltaSizes(1, 1, 2, 2)), build_delta),
        (mamba2_inputs(DeltaSizes(1, 1, 2, 2)), build_mamba2),
        (Conv.random(2, 2).inputs(), Conv.random(2, 2).build),
    ],
)
def test_a_package_may_hold_them(inputs: dict[str, Sequence[int | str]], build: Build, tmp_path: Path) -> None:
    """Also when they were tidied as packages are."""
    model = operator_model(inputs, build)
    for tidy in (
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
    ):
        tidy(model)
    ir.save(model, tmp_path / "model.onnx")
    graph = GraphFile.read(tmp_path / "model.onnx")
    assert graph.looping
    assert not graph.has_unbounded_work()
    ort.InferenceSession(tmp_path / "model.onnx", cpu_options(1), providers=["CPUExecutionProvider"])


def _passes() -> list[tuple[Trees, np.random.Generator]]:
    passes = []
    for trial in range(NUM_TRIALS):
        rng = np.random.default_rng(trial)
        passes.append((random_trees(rng, 1 + trial % 3, int(rng.integers(1, 11)), NUM_SLOTS), rng))
    return passes


def _check_recurrence(
    sizes: DeltaSizes,
    step: Step,
    trees: Trees,
    feed: Feed,
    query: npt.NDArray[Any],
    output: Float32Array,
    present: Float32Array,
    capsules: Float32Array,
    passed_by: Float32Array | None = None,
) -> None:
    for b, num_nodes in enumerate(trees.num_nodes):
        pending = list(feed["pending"][b, : trees.num_pending[b]])
        root = states_along(step, np.asarray(feed["state"][b], np.float32), pending)
        for node in range(num_nodes):
            reached = states_along(step, root, list(capsules[b, trees.path(b, node)]))
            expected = read(sizes, reached, query[b, node])
            if passed_by is not None:
                expected = expected + passed_by[b, node]
            np.testing.assert_array_equal(output[b, node], expected)
        np.testing.assert_array_equal(present[b], states_along(step, root, list(capsules[b, : trees.num_kept[b]])))


def _check_capsules(
    capsules: Float32Array, before: Sequence[npt.NDArray[Any]], num_heads: int, behind: Sequence[npt.NDArray[Any]]
) -> Float32Array:
    """Assert that these rows are in them; the decays that lie between."""
    rows = [
        np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts] or [capsules[..., :0]], 2)
        for parts in (before, behind)
    ]
    num_before = rows[0].shape[2]
    np.testing.assert_array_equal(capsules[..., :num_before], rows[0])
    np.testing.assert_array_equal(capsules[..., num_before + num_heads :], rows[1])
    return capsules[..., num_before : num_before + num_heads]


def _session(inputs: dict[str, Sequence[int | str]], build: Build) -> ort.InferenceSession:
    model = operator_model(inputs, build)
    for value, like in zip(model.graph.outputs, (next(iter(inputs)), "state", "pending"), strict=False):
        value.shape = ir.Shape([None] * len(inputs[like]))
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return ort.InferenceSession(proto.SerializeToString(), cpu_options(1), providers=["CPUExecutionProvider"])
