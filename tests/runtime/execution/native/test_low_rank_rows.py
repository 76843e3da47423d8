"""The kernel of adapters: their definition at odd sizes, the same bits in any pass, and nothing where there is none."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from onnx import TensorProto

from reader_edge_runtime.adapters.adapter_table import AdapterTable, Factors
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.package.package_parts import LowRankPart, LowRankProduct
from tests.runtime.execution.native.node_session import Input, node_session
from tests.runtime.execution.native_operator import needs_kernels

pytestmark = [needs_kernels, pytest.mark.usefixtures("instructions")]

SIZES = [(64, (48,)), (40, (24, 100, 7)), (2100, (33,)), (576, (192, 1536))]


class Case:
    """The second of two products, and a table of three adapters of ranks 1, 5 and 16."""

    def __init__(self, dtype: str, num_inputs: int, outputs: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(num_inputs)
        self.num_inputs, self.outputs = num_inputs, outputs
        before = LowRankProduct(70, (LowRankPart("before", 70),))
        product = LowRankProduct(num_inputs, tuple(LowRankPart(str(i), size) for i, size in enumerate(outputs)))
        table = AdapterTable((before, product), dtype)
        self.adapters = [[self._factors(size, rank) for size in outputs] for rank in (1, 5, 16)]
        for adapter in self.adapters:
            table.add({str(i): factors for i, factors in enumerate(adapter)})
        self.table = table.values
        attributes = {"start": before.rank_size, "size": before.rank_size + product.rank_size}
        inputs = [self._input(1, 1, num_inputs), self._input(1, 1, sum(outputs)), Input(np.array([-1]), False)]
        inputs += [Input(self.table, False), Input(np.array(outputs), True)]
        operator = "LowRankRows" if dtype == "float32" else "LowRankRows16"
        self._session: ort.InferenceSession = node_session(operator, inputs, [TensorProto.FLOAT], attributes)

    def run(self, rows: Float32Array, products: Float32Array, ids: list[int]) -> Float32Array:
        feed: dict[str, npt.NDArray[Any]] = {"input_0": rows, "input_1": products, "input_2": np.array(ids, np.int64)}
        output: Float32Array = self._session.run(None, feed | {"input_3": self.table})[0]
        return output

    def draw(self, *sizes: int) -> tuple[Float32Array, Float32Array]:
        """Rows and products of them."""
        rng, num_outputs = self.rng, sum(self.outputs)
        rows = rng.standard_normal((*sizes, self.num_inputs), np.float32)
        return rows, rng.standard_normal((*sizes, num_outputs), np.float32)

    def _factors(self, num_outputs: int, rank: int) -> Factors:
        """Such as fp16 has exactly."""
        up, down = (self.rng.standard_normal(sizes) for sizes in ((num_outputs, rank), (rank, self.num_inputs)))
        down *= self.num_inputs**-0.5
        return Factors(*(each.astype(np.float16).astype(np.float32) for each in (up, down)))

    def _input(self, *sizes: int) -> Input:
        return Input(np.ones(sizes, np.float32), False)


@pytest.fixture(params=[(dtype, *sizes) for dtype in ("float32", "float16") for sizes in SIZES], scope="module")
def case(request: pytest.FixtureRequest, instructions: str) -> Case:
    return Case(*request.param)


def test_each_sequence_gets_what_its_own_adapter_adds(case: Case) -> None:
    rows, products = case.draw(5, 7)
    ids = [2, -1, 0, 2, 1]
    found = case.run(rows, products, ids)
    assert (found[1] == products[1]).all()
    for b in (0, 2, 3, 4):
        wide = rows[b].astype(np.float64)
        added = np.concatenate([wide @ down.T @ up.T for up, down in map(_widened, case.adapters[ids[b]])], axis=-1)
        np.testing.assert_allclose(found[b], products[b] + added, atol=2e-5)


def test_a_row_has_the_same_bits_in_every_pass(case: Case) -> None:
    rows, products = case.draw(1, 40)
    whole = case.run(rows, products, [2])
    for width in (1, 2, 3, 4, 5, 17):
        part = case.run(rows[:, :width], products[:, :width], [2])
        assert part.tobytes() == whole[:, :width].tobytes()
    as_sequences = case.run(rows.swapaxes(0, 1).copy(), products.swapaxes(0, 1).copy(), [2] * 40)
    assert as_sequences.tobytes() == whole.tobytes()


def test_padding_gets_what_its_node_gets_and_neighbours_with_equal_inputs_their_own(case: Case) -> None:
    rows, products = case.draw(3, 4)
    rows[:, 2:], products[:, 2:] = rows[:, 1:2], products[:, 1:2]
    rows[1], products[1] = rows[0, 1], products[0, 1]
    found = case.run(rows, products, [1, 0, -1])
    assert (found[0, 2:] == found[0, 1]).all()
    assert found[1].tobytes() == case.run(rows[1:2], products[1:2], [0]).tobytes()
    assert not (found[1] == found[0, 1]).all()


def test_without_adapters_a_table_may_be_empty(case: Case) -> None:
    rows, products = case.draw(2, 3)
    case.table, kept = case.table[:0], case.table
    assert case.run(rows, products, [-1, -1]).tobytes() == products.tobytes()
    case.table = kept


def _widened(factors: Factors) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    return factors.up.astype(np.float64), factors.down.astype(np.float64)
