"""Trees of a batch: each gets the nodes that are worth most, as far as padding lets them differ."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from reader_edge_runtime.decoding.planning.tree_widths import best_widths, equal_width, time_at

MARGIN, MARGIN_OF_UNEQUAL = 1.02, 1.1

falling = st.lists(st.floats(0, 1), min_size=0, max_size=4).map(lambda gains: sorted(gains, reverse=True))
rising = st.lists(st.floats(0, 0.02), min_size=4, max_size=4).map(
    lambda steps: [float("inf"), *itertools.accumulate(steps, initial=0.01)]
)


def rate(widths: tuple[int, ...], gains: list[list[float]], times: list[float], share: float) -> float:
    width = equal_width(sum(widths), max(widths), len(gains), share)
    expected = len(gains) + sum(sum(each[: width - 1]) for each, width in zip(gains, widths, strict=True))
    return expected / (time_at(times, width) + 0.001)


@given(st.lists(falling, min_size=1, max_size=3), rising, st.floats(0, 1))
def test_no_other_trees_promise_more(gains: list[list[float]], times: list[float], share: float) -> None:
    chosen = best_widths(gains, times, share, 0.001)
    best = max(
        rate(widths, gains, times, share) for widths in itertools.product(*(range(1, 2 + len(g)) for g in gains))
    )
    plain = rate((1,) * len(gains), gains, times, share)
    if max(chosen) == 1:
        assert best <= MARGIN * plain * (1 + 1e-9)
        return
    cut = tuple(min(width, 1 + len(each)) for width, each in zip(chosen, gains, strict=True))
    is_equal = len(set(chosen)) == 1
    assert rate(cut, gains, times, share) >= best / (MARGIN_OF_UNEQUAL if is_equal else 1) * (1 - 1e-9)


def test_trees_that_differ_must_promise_clearly_more_than_equal_ones() -> None:
    times = [float("inf"), 0.010, 0.011, 0.012]
    little, much = [[0.9, 0.5], [0.8, 0.05]], [[0.9, 0.9], [0.01, 0.0]]
    assert best_widths(little, times, 0.0, 0.0) == [3, 3]
    assert best_widths(much, [float("inf"), 0.010, 0.015, 0.020], 0.0, 0.0) == [3, 1]


def test_nodes_go_where_they_are_worth_most_where_padding_is_cheap() -> None:
    strong, weak = [0.95, 0.9, 0.9], [0.05, 0.01]
    times = [float("inf"), 0.010, 0.018, 0.026, 0.034]
    assert best_widths([weak, strong, weak, weak], times, 0.0, 0.0) == [1, 4, 1, 1]
    assert best_widths([weak, strong, weak, weak], times, 1.0, 0.0) == [1] * 4


def test_a_tree_may_be_wider_than_equal_ones_were_measured() -> None:
    times = [float("inf"), 0.010, 0.011]
    widths = best_widths([[0.9] * 7, [0.01]] + [[0.01]] * 14, times, 0.05, 0.0)
    assert widths[0] == 8
    assert best_widths([[0.9] * 7] * 16, times, 0.05, 0.0) != [8] * 16


def test_a_pass_takes_as_long_as_equal_trees_of_its_mean_width_and_its_paddings_share() -> None:
    assert equal_width(8, 5, 4, 0.0) == 2
    assert equal_width(8, 5, 4, 1.0) == 5
    assert equal_width(8, 5, 4, 0.5) == 3.5
    assert time_at([float("inf"), 1.0, 3.0], 1.5) == 2.0
    assert time_at([float("inf"), 1.0, 3.0], 2) == 3.0
