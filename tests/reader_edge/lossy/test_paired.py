"""Figures of paired trials, against worked values."""

import pytest

from reader_edge.lossy.paired import mcnemar, wilson


def test_wilsons_interval_is_that_of_the_literature() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe, 1998, table I
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_an_even_split_is_luck_and_an_uneven_one_is_not() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(3, 3) == 1.0
    assert mcnemar(0, 6) == mcnemar(6, 0) == pytest.approx(2 / 64)
    assert mcnemar(1, 9) == pytest.approx(2 * 11 / 1024)
    assert mcnemar(2000, 2000) == 1.0
