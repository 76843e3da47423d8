"""The node budget: the width with the most expected tokens per second, and no drafting where it loses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader_edge_runtime.decoding.node_budget import NodeBudget
from reader_edge_runtime.execution.verify_cost import VerifyCost

WIDTHS = (1, 2, 4, 8, 16)
PASTS = (10, 100)


def cost(growth: float, batch_size: int = 1, step: float = 0.0) -> VerifyCost:
    """10 ms a pass, `growth` of it more per node; a step of the curve between 4 and 8 nodes."""
    row = np.array([0.01 * (1 + growth * (width - 1)) + (step if width > 4 else 0.0) for width in WIDTHS])
    return VerifyCost(batch_size, PASTS, WIDTHS, np.stack([row, 2 * row]))


def budget_of(*costs: VerifyCost) -> NodeBudget:
    budget = NodeBudget(max_width=16)
    for each in costs:
        budget.add(each)
    return budget


@given(
    values=st.lists(st.lists(st.floats(0, 1), min_size=0, max_size=15), min_size=1, max_size=3),
    growth=st.floats(0, 1),
    step=st.floats(0, 0.02),
    past=st.integers(1, 200),
)
def test_choice_is_the_best_of_all_widths(values: list[list[float]], growth: float, step: float, past: int) -> None:
    trees = [[1.0, *each] for each in values]
    budget = budget_of(cost(growth, batch_size=len(trees), step=step))
    times = budget.pass_seconds(len(trees), past)

    def rate(width: int) -> float:
        return sum(sum(sorted(tree, reverse=True)[:width]) for tree in trees) / float(times[width])

    chosen = budget.choose(trees, past)
    assert rate(chosen) == pytest.approx(max(rate(width) for width in range(1, max(map(len, trees)) + 1)))


def test_nothing_is_drafted_where_nodes_cost_more_than_they_give() -> None:
    assert budget_of(cost(growth=0.5)).choose([[1.0, 0.4, 0.3, 0.2]], past=50) == 1
    assert budget_of(cost(growth=0.0)).choose([[1.0, 0.4, 0.3, 0.2]], past=50) == 4


def test_times_are_interpolated_and_grow_beyond_the_longest_past() -> None:
    measured = cost(growth=0.1)
    times = measured.pass_seconds(55)
    assert np.isinf(times[0])
    assert times[1] == pytest.approx(0.015)
    assert times[3] == pytest.approx((times[2] + times[4]) / 2)
    assert measured.pass_seconds(190)[1] == pytest.approx(0.03)
    assert measured.pass_seconds(1)[1] == pytest.approx(0.01)


def test_guard_rests_after_a_losing_window_and_then_tries_again() -> None:
    budget = budget_of(cost(growth=0.0))

    def lose() -> None:
        for _ in range(24):
            budget.observe_drafted(1, 8, past=50, pass_s=0.015, step_s=0.03, num_tokens=1)

    lose()
    assert budget.is_resting
    num_rested = 0
    while budget.is_resting:
        budget.observe_plain(1, past=50, pass_s=0.015, step_s=0.015)
        num_rested += 1
    lose()
    num_rested_again = 0
    while budget.is_resting:
        budget.observe_plain(1, past=50, pass_s=0.015, step_s=0.015)
        num_rested_again += 1
    assert num_rested_again == 2 * num_rested > 0


def test_guard_lets_winning_drafts_run() -> None:
    budget = budget_of(cost(growth=0.0))
    for _ in range(100):
        budget.observe_drafted(1, 8, past=50, pass_s=0.015, step_s=0.016, num_tokens=3)
        assert not budget.is_resting


def test_one_slow_step_does_not_end_drafting() -> None:
    budget = budget_of(cost(growth=0.0))
    for number in range(96):
        step_s = 1.0 if number % 24 == 7 else 0.016
        budget.observe_drafted(1, 8, past=50, pass_s=0.015, step_s=step_s, num_tokens=2)
        assert not budget.is_resting


def test_measured_steps_correct_the_times_of_their_width() -> None:
    budget = budget_of(cost(growth=0.0))
    before = budget.pass_seconds(1, 50)
    for _ in range(200):
        budget.observe_drafted(1, 8, past=50, pass_s=2 * float(before[8]), step_s=0.02, num_tokens=4)
    after = budget.pass_seconds(1, 50)
    assert after[8] == pytest.approx(2 * before[8], rel=0.05)
    assert after[1] == before[1]


def test_without_a_measurement_sure_nodes_are_drafted_and_unlikely_ones_are_not() -> None:
    budget = budget_of()
    assert budget.choose([[1.0, 0.9, 0.8, 0.7]], past=50) == 4
    assert budget.choose([[1.0, 0.01, 0.005]], past=50) == 1
