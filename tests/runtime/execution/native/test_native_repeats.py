"""Rows that repeat the one before, as padding does: native kernels compute them once, and their outputs are its."""

from pathlib import Path

import numpy as np
import pytest

from tests.runtime.execution.native.kernel_cases import WIDEST, Array, Case, cases
from tests.runtime.execution.native_operator import Operator, needs_kernels

pytestmark = [needs_kernels, pytest.mark.usefixtures("instructions")]

OF_ROWS = ("int8-1-576", "int8-2-37", "int4-576", "keep-Q8_0", "keep-Q6_K", "keep-Q4_1", "swiglu")
ATTENTION = tuple(
    f"attention-{form}-70-64"
    for form in ("exact-float32", "exact-float16", "integer-float32", "integer-float16", "integer-int8")
)


@pytest.fixture(scope="module")
def all_cases() -> dict[str, Case]:
    return {case.name: case for case in cases()}


@pytest.fixture
def case(all_cases: dict[str, Case], request: pytest.FixtureRequest) -> Case:
    return all_cases[request.param]


def operator_of(case: Case, folder: Path) -> Operator:
    return Operator(folder, case.sizes, case.build, case.attention)


@pytest.mark.parametrize("case", OF_ROWS, indirect=True)
def test_repeated_rows_have_the_outputs_of_the_row_they_repeat(case: Case, tmp_path: Path) -> None:
    operator = operator_of(case, tmp_path)
    alone = operator.run_native(case.feed)
    rng = np.random.default_rng(0)
    in_runs, all_one = np.sort(rng.integers(0, WIDEST, WIDEST)), np.full(WIDEST, 5)
    padded = np.minimum(np.arange(WIDEST), 2)
    for order in (in_runs, all_one, padded):
        outputs = operator.run_native({name: rows[:, order] for name, rows in case.feed.items()})
        for output, expected in zip(outputs, alone, strict=True):
            np.testing.assert_array_equal(output.view(np.uint8), expected[:, order].view(np.uint8))


@pytest.mark.parametrize("case", ATTENTION, indirect=True)
def test_repeated_nodes_attend_as_the_node_they_repeat(case: Case, tmp_path: Path) -> None:
    operator = operator_of(case, tmp_path)
    alone = operator.run_native(case.feed)[0]
    lengths = (1, 5, 40, WIDEST)
    feed = {name: np.repeat(array, len(lengths), axis=0) for name, array in case.feed.items()}
    for b, length in enumerate(lengths):
        for name in ("query", "mask"):
            feed[name][b, :, length:] = feed[name][b, :, length - 1 : length]
    output = operator.run_native(feed)[0]
    for b, length in enumerate(lengths):
        np.testing.assert_array_equal(output[b], alone[0][:, np.minimum(np.arange(WIDEST), length - 1)])


@pytest.mark.parametrize("case", ATTENTION[::2], indirect=True)
def test_nodes_that_see_the_same_but_ask_another_question_attend_for_themselves(case: Case, tmp_path: Path) -> None:
    feed: dict[str, Array] = {name: array.copy() for name, array in case.feed.items()}
    feed["mask"][:, :, 10:] = feed["mask"][:, :, 10:11]
    for head in (0, -1):  # which alone differs
        feed["query"][:, :, 11:] = feed["query"][:, :, 10:11]
        feed["query"][:, head, 20:] = feed["query"][:, head, 9:10]
        output = operator_of(case, tmp_path).check(**feed)[0]
        assert (output[:, head, 19] != output[:, head, 20]).any()
        np.testing.assert_array_equal(output[:, :, 20:], output[:, :, 20:21].repeat(WIDEST - 20, axis=2))
