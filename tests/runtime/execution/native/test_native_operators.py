"""Native kernels one operator at a time: the bits of their definitions at odd sizes, over any trees and experts."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_export.operators.definitions import rotary_heads, swiglu
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.execution.onnxruntime.session import open_session
from tests.expert_matrices import ExpertMatrices, random_experts
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

_MAGNITUDES = [0.0, 1e-45, 1e-30, 1, 18, 87, 88.7, 88.8, 104, 1e4, float(np.finfo(np.float32).max), np.inf]
EXTREMES = np.outer(_MAGNITUDES, [1, -1]).astype(np.float32).ravel()
_ROTARY_INPUTS: dict[str, Sequence[int | str]] = {name: ("B", "N", name) for name in ("qkv", "cosines", "sines")}


pytestmark = [needs_kernels, pytest.mark.usefixtures("instructions")]


@pytest.mark.parametrize("width", [1, 7, 16, 100, 2048, 4864])
def test_swiglu_keeps_the_bits(width: int, tmp_path: Path) -> None:
    operator = Operator(tmp_path, {"rows": ["B", "N", 2 * width]}, lambda editor, values: [swiglu(editor, values[0])])
    rng = np.random.default_rng(width)
    for num_rows in (1, 2, 3, 16, 33):
        rows = 4 * rng.standard_normal((2, num_rows, 2 * width), np.float32)
        gate, up = rows[..., :width].astype(np.float64), rows[..., width:]
        (output,) = operator.check(rows=rows)
        np.testing.assert_allclose(output, gate / (1 + np.exp(-gate)) * up, rtol=1e-6)
        operator.check(rows=rows * np.float32(40))
    operator.check(rows=np.resize(EXTREMES, (1, 3, 2 * width)))


def test_swiglu_of_any_finite_gate_is_a_number(tmp_path: Path) -> None:
    gates = EXTREMES[np.isfinite(EXTREMES)]
    sizes = {"rows": [1, 2 * len(gates)]}
    operator = Operator(tmp_path, sizes, lambda editor, values: [swiglu(editor, values[0])])
    (output,) = operator.check(rows=np.concatenate([gates, np.ones_like(gates)])[None])
    assert np.isfinite(output).all()


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_size"), [(1, 1, 16), (14, 2, 64), (3, 3, 80), (4, 1, 256)])
def test_rotary_heads_keep_the_bits(num_heads: int, num_kv_heads: int, head_size: int, tmp_path: Path) -> None:
    width, half = (num_heads + 2 * num_kv_heads) * head_size, head_size // 2
    operator = Operator(
        tmp_path,
        {"qkv": ("B", "N", width), "cosines": ("B", "N", half), "sines": ("B", "N", half)},
        _rotary_heads(num_heads, num_kv_heads),
    )
    rng = np.random.default_rng(head_size)
    for batch, num_nodes in ((1, 1), (1, 2), (2, 3), (1, 16), (3, 33)):
        qkv = rng.standard_normal((batch, num_nodes, width), np.float32)
        angles = rng.uniform(0, 2 * np.pi, (batch, num_nodes, half)).astype(np.float32)
        query, key, value = operator.check(qkv=qkv, cosines=np.cos(angles), sines=np.sin(angles))
        heads = qkv.reshape(batch, num_nodes, -1, head_size).swapaxes(1, 2)
        np.testing.assert_array_equal(value, heads[:, num_heads + num_kv_heads :])
        x, y = np.split(heads[:, : num_heads + num_kv_heads].astype(np.float64), 2, axis=3)
        cosines, sines = np.cos(angles)[:, None], np.sin(angles)[:, None]
        turned = np.concatenate([x * cosines - y * sines, x * sines + y * cosines], axis=3)
        np.testing.assert_allclose(np.concatenate([query, key], axis=1), turned, atol=1e-6)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"), [(2**63 - 1, 1), (1, 2**63 - 1), (2**63 - 2, 2**62), (2**62, 2**62), (0, 1), (1, -1)]
)
def test_numbers_of_heads_out_of_range_are_refused(num_heads: int, num_kv_heads: int, tmp_path: Path) -> None:
    graph = left_to_kernels(operator_model(_ROTARY_INPUTS, _rotary_heads(num_heads, num_kv_heads)), tmp_path)
    with pytest.raises(ProviderError, match="RotaryHeads: its numbers of heads are out of range"):
        open_session(graph, 1, native_library())


@pytest.mark.parametrize("width", [0, 63, 96])
def test_columns_that_are_no_heads_are_refused_when_they_come(width: int, tmp_path: Path) -> None:
    operator = Operator(tmp_path, _ROTARY_INPUTS, _rotary_heads(2, 1))
    with pytest.raises(Fail, match="RotaryHeads: "):
        operator.run_native(_rotary_feed(2, width))


def test_tensors_without_elements_are_no_work(tmp_path: Path) -> None:
    operator = Operator(tmp_path, {"rows": ["N", 2]}, lambda editor, values: [swiglu(editor, values[0])])
    assert operator.run_native({"rows": np.zeros((0, 2), np.float32)})[0].shape == (0, 1)
    operator = Operator(tmp_path, _ROTARY_INPUTS, _rotary_heads(2, 1))
    shapes = [part.shape for part in operator.run_native(_rotary_feed(0, 64))]
    assert shapes == [(1, 2, 0, 16), (1, 1, 0, 16), (1, 1, 0, 16)]


def _rotary_heads(num_heads: int, num_kv_heads: int) -> Build:
    return lambda editor, values: rotary_heads(editor, values[0], values[1], values[2], num_heads, num_kv_heads)


def _rotary_feed(num_nodes: int, width: int) -> dict[str, npt.NDArray[np.generic]]:
    return {
        name: np.zeros((1, num_nodes, size), np.float32)
        for name, size in zip(_ROTARY_INPUTS, (width, 8, 8), strict=True)
    }


NUM_SLOTS = 3


# Columns of less than a vector, of one, of several tiles, and behind the last whole one.
SIZES = [DeltaSizes(2, 4, 8, 12), DeltaSizes(1, 3, 5, 16), DeltaSizes(2, 2, 33, 128), DeltaSizes(1, 2, 16, 100)]


@pytest.mark.parametrize("sizes", SIZES)
def test_tree_delta_keeps_the_bits(sizes: DeltaSizes, tmp_path: Path) -> None:
    operator = Operator(tmp_path, delta_inputs(sizes), build_delta)
    for trees, rng in _tree_passes():
        operator.check(**delta_feed(rng, sizes, trees, NUM_SLOTS))


@pytest.mark.parametrize("sizes", SIZES)
def test_tree_scan_keeps_the_bits(sizes: DeltaSizes, tmp_path: Path) -> None:
    operator = Operator(tmp_path, mamba2_inputs(sizes), build_mamba2)
    for trees, rng in _tree_passes():
        operator.check(**mamba2_feed(rng, sizes, trees, NUM_SLOTS))


@pytest.mark.parametrize(("num_channels", "num_taps"), [(5, 4), (16, 3), (1, 2), (2100, 4)])
def test_tree_conv_keeps_the_bits(num_channels: int, num_taps: int, tmp_path: Path) -> None:
    conv = Conv.random(num_channels, num_taps)
    operator = Operator(tmp_path, conv.inputs(), conv.build)
    for trees, rng in _tree_passes():
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


def _tree_passes() -> list[tuple[Trees, np.random.Generator]]:
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


NUM_EXPERTS = 7
NUM_ROWS = [1, 2, 3, 8, 16, 40, 130]


@pytest.mark.parametrize("form", ["int8", "int8-a16", "int4"])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(37, 5), (576, 40), (1536, 33)])
def test_experts_keep_the_bits(form: str, num_inputs: int, num_outputs: int, tmp_path: Path) -> None:
    matrices = random_experts(form, NUM_EXPERTS, num_outputs, num_inputs)
    operator = Operator(tmp_path, {"rows": ("R", num_inputs), "experts": ("R",)}, _product(matrices))
    for rows, experts in _passes(num_inputs):
        operator.check(rows=rows, experts=experts)


@pytest.mark.parametrize("form", BLOCK_TYPES)
def test_experts_that_stay_as_they_are_have_bits_of_their_own(form: str, tmp_path: Path) -> None:
    """The same on any threads, in any order, and whatever stands beside a row."""
    matrices = random_experts(form, NUM_EXPERTS, 40, 512)
    model = operator_model({"rows": ("R", 512), "experts": ("R",)}, _product(matrices))
    one, two = (_session(left_to_kernels(model, tmp_path), num_threads) for num_threads in (1, 2))
    rng = np.random.default_rng(0)
    for rows, experts in _passes(512):
        (whole,) = one.run(None, {"rows": rows, "experts": experts})
        expected = matrices.expected(rows, experts)
        np.testing.assert_allclose(whole, expected, atol=2e-2 * max(np.abs(expected).max(), 1e-30))
        np.testing.assert_array_equal(two.run(None, {"rows": rows, "experts": experts})[0], whole)
        order = rng.permutation(len(rows))[: len(rows) // 2 + 1]
        (some,) = one.run(None, {"rows": rows[order], "experts": experts[order]})
        np.testing.assert_array_equal(some, whole[order])


@pytest.mark.parametrize("form", ["int8", "int4", "Q4_0"])
def test_a_row_that_is_sent_nowhere_is_refused(form: str, tmp_path: Path) -> None:
    session = _native(random_experts(form, NUM_EXPERTS, 40, 256), tmp_path)
    rows = np.ones((3, 256), np.float32)
    for expert in (NUM_EXPERTS, -1, 2**62, -(2**63)):
        with pytest.raises(Fail, match="Experts: a row is sent to an expert that is not there"):
            session.run(None, {"rows": rows, "experts": np.array([0, expert, 1])})
    for experts in (np.zeros(2, np.int64), np.zeros(4, np.int64)):
        with pytest.raises(Fail, match="Experts: sizes of rows and experts do not fit"):
            session.run(None, {"rows": rows, "experts": experts})
    assert session.run(None, {"rows": rows[:0], "experts": np.zeros(0, np.int64)})[0].shape == (0, 40)


def _passes(num_inputs: int) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
    """Rows of every size, some of them zero; an expert that nobody is sent to, and one that all are."""
    rng = np.random.default_rng(num_inputs)
    for num_rows in NUM_ROWS:
        rows = rng.standard_normal((num_rows, num_inputs), np.float32)
        rows[3::7] = 0
        rows[4::7] *= np.float32(1e-12)
        rows[5::7, 0] *= np.float32(1e4)
        yield rows, rng.integers(0, NUM_EXPERTS - 1, num_rows)
    yield rows[:16], np.full(16, NUM_EXPERTS - 1)


def _product(matrices: ExpertMatrices) -> Build:
    return lambda editor, inputs: [matrices.product(editor, *inputs)]


def _native(matrices: ExpertMatrices, folder: Path) -> ort.InferenceSession:
    model = operator_model({"rows": ("R", 256), "experts": ("?",)}, _product(matrices))
    return _session(left_to_kernels(model, folder), 2)


def _session(graph: Path, num_threads: int) -> ort.InferenceSession:
    options = thread_options(num_threads)
    options.register_custom_ops_library(str(native_library()))
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
