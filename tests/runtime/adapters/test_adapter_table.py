"""The table of adapters: where factors lie in a row, what growth keeps, what is refused."""

import numpy as np
import pytest

from reader_edge_runtime.adapters.adapter_table import AdapterTable, Factors
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.package_parts import LowRankPart, LowRankProduct

PRODUCTS = (
    LowRankProduct(40, (LowRankPart("q", 24), LowRankPart("k", 100))),
    LowRankProduct(2100, (LowRankPart("down", 40),)),
    LowRankProduct(40, (LowRankPart("q", 24),)),  # a module that is used twice
)
SHAPES = {"q": (24, 40), "k": (100, 40), "down": (40, 2100)}


def factors_of(name: str, rank: int, seed: int = 0) -> Factors:
    rng, (num_outputs, num_inputs) = np.random.default_rng(seed), SHAPES[name]
    return Factors(
        rng.standard_normal((num_outputs, rank), np.float32), rng.standard_normal((rank, num_inputs), np.float32)
    )


def expected(adapter: dict[str, Factors], rank: int) -> list[float]:
    """A row by the description of native/src/adapters/low_rank_rows.h, number by number."""
    row: list[float] = []
    for product in PRODUCTS:
        for part in product.parts:
            up, down = adapter.get(part.name) or Factors(
                np.zeros((part.num_outputs, 0), np.float32), np.zeros((0, 0), np.float32)
            )
            row += _blocks(down, rank, product.num_inputs, 1024, 32)
            row += _blocks(up.T, rank, part.num_outputs, 64, 64)
    return row


def _blocks(matrix: np.ndarray, rank: int, width: int, block: int, step: int) -> list[float]:
    full = np.zeros((rank, -(-width // step) * step), np.float32)
    full[: len(matrix), : matrix.shape[1]] = matrix
    return [number for begin in range(0, width, block) for number in full[:, begin : begin + block].ravel().tolist()]


def test_factors_lie_where_kernels_look_for_them_and_growth_keeps_them() -> None:
    table = AdapterTable(PRODUCTS)
    assert table.values.shape == (0, sum(product.rank_size for product in PRODUCTS))
    first = {"q": factors_of("q", 3), "down": factors_of("down", 2)}
    second = {"k": factors_of("k", 5), "q": factors_of("q", 1)}
    assert [table.add(first), table.add(second)] == [0, 1]
    assert table.values.ctypes.data % 64 == 0
    assert [row.tolist() for row in table.values] == [expected(first, 5), expected(second, 5)]


def test_a_free_id_is_given_again_and_nothing_is_left_of_who_had_it() -> None:
    table = AdapterTable(PRODUCTS)
    adapters = [{"q": factors_of("q", 2, seed)} for seed in range(3)]
    for adapter in adapters:
        table.add(adapter)
    before = table.values
    table.drop(1)
    other = {"k": factors_of("k", 1)}
    assert table.add(other) == 1
    assert table.values is before  # passes that are bound to it read on
    assert [row.tolist() for row in table.values] == [expected(each, 2) for each in (adapters[0], other, adapters[2])]
    assert table.num_bytes == before.nbytes


def test_what_does_not_fit_changes_nothing() -> None:
    table = AdapterTable(PRODUCTS)
    with pytest.raises(ConfigError, match=r"^lm_head takes no adapter in this package: load one that leaves it"):
        table.add({"q": factors_of("q", 2), "lm_head": factors_of("q", 2)})
    with pytest.raises(ConfigError, match=r"shapes \(100, 2\) and \(2, 40\), and its matrix has \(24, 40\): load an"):
        table.add({"q": factors_of("k", 2)})
    assert table.values.shape[0] == 0
    with pytest.raises(ConfigError, match="q takes no adapter"):
        AdapterTable(()).add({"q": factors_of("q", 2)})


def test_halves_have_the_same_product_however_far_apart_factors_are() -> None:
    up, down = factors_of("q", 3)
    table = AdapterTable(PRODUCTS, "float16")
    of_up, of_down = (np.array(scales, np.float32) for scales in ((1e-7, 1, 1e6), (1e5, 1, 1e-7)))
    table.add({"q": Factors(up * of_up, down * of_down[:, None])})
    assert table.values.dtype == np.float16
    row = table.values[0].astype(np.float32)
    found_down, found_up = row[: 3 * 64].reshape(3, 64)[:, :40], row[3 * 64 : 3 * 128].reshape(3, 64)[:, :24].T
    wide = np.einsum("jr,rk,r->rjk", up, down, [1e-2, 1, 1e-1])
    np.testing.assert_allclose(np.einsum("jr,rk->rjk", found_up, found_down), wide, rtol=2e-3, atol=1e-5)
    with pytest.raises(ConfigError, match=r"^The factors of q are too large for fp16: load another adapter\.$"):
        table.add({"q": Factors(up * np.float32(1e6), down * np.float32(1e6))})


def test_memory_that_is_short_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    table, adapter = AdapterTable(PRODUCTS), {"q": factors_of("q", 2)}
    monkeypatch.setattr("reader_edge_runtime.adapters.adapter_table.np.zeros", refuse)
    with pytest.raises(ConfigError, match=r"^Adapters take 0\.0 GB of memory, which is short: load fewer\.$"):
        table.add(adapter)


def test_a_high_rank_is_refused_by_what_the_rows_of_all_adapters_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    table = AdapterTable(PRODUCTS)
    for _ in range(3):
        table.add({"q": factors_of("q", 2)})
    before = table.values
    monkeypatch.setattr("reader_edge_runtime.adapters.adapter_table.free_bytes", lambda: 2 * before.nbytes)
    with pytest.raises(ConfigError, match="of memory, which is short: load fewer"):
        table.add({"q": factors_of("q", 4)})
    assert table.values is before
