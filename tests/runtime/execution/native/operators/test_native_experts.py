"""Native products by the matrices of experts: the bits of their definitions, a row's whatever stands beside it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from reader_edge_export.blocks.block_type import BLOCK_TYPES
from reader_edge_runtime.execution.onnxruntime.native import native_library
from tests.expert_matrices import ExpertMatrices, random_experts
from tests.runtime.execution.native_operator import (
    Build,
    Operator,
    left_to_kernels,
    needs_kernels,
    operator_model,
    thread_options,
)

pytestmark = [needs_kernels, pytest.mark.usefixtures("instructions")]

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
