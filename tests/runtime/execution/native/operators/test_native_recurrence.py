"""Native kernels of recurrent operators: the bits of their definitions, over any trees, in place and on any threads."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from reader_edge_runtime.execution.onnxruntime.native import native_library
from tests.recurrent_trees import (
    Conv,
    DeltaSizes,
    Feed,
    Trees,
    build_delta,
    build_mamba2,
    conv_feed,
    delta_feed,
    delta_inputs,
    mamba2_feed,
    mamba2_inputs,
    random_trees,
)
from tests.runtime.execution.native_operator import (
    Build,
    Operator,
    left_to_kernels,
    needs_kernels,
    operator_model,
    thread_options,
)

pytestmark = [needs_kernels, pytest.mark.usefixtures("instructions")]

NUM_SLOTS = 3
# Columns of less than a vector, of one, of several tiles, and behind the last whole one.
SIZES = [DeltaSizes(2, 4, 8, 12), DeltaSizes(1, 3, 5, 16), DeltaSizes(2, 2, 33, 128), DeltaSizes(1, 2, 16, 100)]


@pytest.mark.parametrize("sizes", SIZES)
def test_tree_delta_keeps_the_bits(sizes: DeltaSizes, tmp_path: Path) -> None:
    operator = Operator(tmp_path, delta_inputs(sizes), build_delta)
    for trees, rng in _passes():
        operator.check(**delta_feed(rng, sizes, trees, NUM_SLOTS))


@pytest.mark.parametrize("sizes", SIZES)
def test_tree_scan_keeps_the_bits(sizes: DeltaSizes, tmp_path: Path) -> None:
    operator = Operator(tmp_path, mamba2_inputs(sizes), build_mamba2)
    for trees, rng in _passes():
        operator.check(**mamba2_feed(rng, sizes, trees, NUM_SLOTS))


@pytest.mark.parametrize(("num_channels", "num_taps"), [(5, 4), (16, 3), (1, 2), (2100, 4)])
def test_tree_conv_keeps_the_bits(num_channels: int, num_taps: int, tmp_path: Path) -> None:
    conv = Conv.random(num_channels, num_taps)
    operator = Operator(tmp_path, conv.inputs(), conv.build)
    for trees, rng in _passes():
        operator.check(**conv_feed(rng, conv, trees, NUM_SLOTS))


def test_signs_of_zeros_and_decays_of_any_size_are_kept(tmp_path: Path) -> None:
    sizes = DeltaSizes(1, 4, 4, 16)
    operator = Operator(tmp_path, delta_inputs(sizes), build_delta)
    rng = np.random.default_rng(0)
    trees = random_trees(rng, 1, 4, NUM_SLOTS)
    feed = delta_feed(rng, sizes, trees, NUM_SLOTS)
    decays = [0, -1e-30, -1, -80, -87.4, -88, -104, -1e4, -1e30, -np.inf, 1e-30, 1, 3, 88, 88.8, 1e30]
    feed["log_decay"] = np.array(decays, np.float32).reshape(1, 4, 4)
    operator.check(**feed)
    negative = {name: np.full_like(feed[name], -0.0) for name in ("query", "key", "state")}
    operator.check(**{**feed, **negative})


def test_a_state_is_renewed_where_it_lies(tmp_path: Path) -> None:
    """As the runtime binds it: the state's memory is that of `present`, for definition and kernel."""
    for name, (inputs, build, feed) in _operators().items():
        operator = Operator(tmp_path, inputs, build)
        for session in (operator._definition, operator._native):
            output, present, *_ = session.run(None, feed)
            names = [each.name for each in session.get_outputs()]
            state = ort.OrtValue.ortvalue_from_numpy(feed["state"].copy())
            binding = session.io_binding()
            for given, array in feed.items():
                if given != "state":
                    binding.bind_cpu_input(given, array)
            binding.bind_ortvalue_input("state", state)
            binding.bind_output(names[0])
            binding.bind_ortvalue_output(names[1], state)
            for capsules in names[2:]:
                binding.bind_output(capsules)
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), output, err_msg=name)
            np.testing.assert_array_equal(state.numpy(), present, err_msg=name)


def test_any_number_of_threads_keeps_the_bits(tmp_path: Path) -> None:
    for inputs, build, feed in _operators(num_nodes=40).values():
        graph = left_to_kernels(operator_model(inputs, build), tmp_path)
        outputs = []
        for num_threads in (1, 2):
            options = thread_options(num_threads)
            options.register_custom_ops_library(str(native_library()))
            outputs.append(ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"]).run(None, feed))
        for one, two in zip(*outputs, strict=True):
            np.testing.assert_array_equal(one.view(np.uint8), two.view(np.uint8))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("parents", [-1, 1, 0], "a parent does not come before its node"),
        ("parents", [-1, 0, -2], "a parent does not come before its node"),
        ("parents", [-1, 0, 2**62], "a parent does not come before its node"),
        ("parents", [-1, -1, 0], "nodes that are kept are no chain"),
        ("parents", [-1, 0], "sizes of parents, num_kept and num_pending do not fit"),
        ("num_kept", 4, "more nodes are kept than there are"),
        ("num_kept", -1, "more nodes are kept than there are"),
        ("num_pending", NUM_SLOTS + 1, "more rows are pending than there are"),
        ("num_pending", -(2**62), "more rows are pending than there are"),
    ],
)
def test_trees_that_are_none_are_refused(name: str, value: int | list[int], words: str, tmp_path: Path) -> None:
    for operator, (inputs, build, feed) in _operators().items():
        wrong = {**feed, name: np.array([value], np.int64)}
        with pytest.raises(Fail, match=f"{operator}: {words}"):
            Operator(tmp_path, inputs, build).run_native(wrong)


@pytest.mark.parametrize("name", ["state", "pending", "num_kept", "parents"])
def test_sizes_that_do_not_fit_are_refused(name: str, tmp_path: Path) -> None:
    for operator, (inputs, build, feed) in _operators().items():
        unsized = {each: ["?" + str(axis) + each for axis in range(len(sizes))] for each, sizes in inputs.items()}
        for wrong in _wrong_sizes(feed[name]):
            with pytest.raises(Fail, match=f"{operator}: sizes of .* do not fit"):
                Operator(tmp_path, unsized, build).run_native({**feed, name: wrong})


def _wrong_sizes(array: npt.NDArray[np.generic]) -> list[npt.NDArray[np.generic]]:
    doubled = [np.concatenate([array, array], axis) for axis in range(array.ndim) if array.ndim != 3 or axis != 1]
    return [*doubled, array[:0]]


def _passes() -> list[tuple[Trees, np.random.Generator]]:
    """Of each batch and width; one of them wide enough for threads."""
    widths = [1, 1, 2, 3, 5, 8, 13, 16, 33]
    rngs = [np.random.default_rng(width) for width in widths]
    return [
        (random_trees(rng, 1 + i % 3, width, NUM_SLOTS), rng)
        for i, (width, rng) in enumerate(zip(widths, rngs, strict=True))
    ]


def _operators(num_nodes: int = 3) -> Mapping[str, tuple[dict[str, Sequence[int | str]], Build, Feed]]:
    """A pass of each operator: a tree of which two nodes are kept, behind two pending rows."""
    rng = np.random.default_rng(0)
    parents = np.array([-1, 0, 0, *rng.integers(1, 3, num_nodes - 3)])[None]
    trees = Trees(parents, np.array([2]), np.array([2]), np.array([num_nodes]))
    sizes, conv = DeltaSizes(2, 4, 8, 100), Conv.random(1500, 4)
    return {
        "TreeDelta": (delta_inputs(sizes), build_delta, delta_feed(rng, sizes, trees, NUM_SLOTS)),
        "TreeScan": (mamba2_inputs(sizes), build_mamba2, mamba2_feed(rng, sizes, trees, NUM_SLOTS)),
        "TreeConv": (conv.inputs(), conv.build, conv_feed(rng, conv, trees, NUM_SLOTS)),
    }
