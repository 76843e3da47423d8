"""Two passes over one draft: which nodes each gets, and when the second is waited for."""

import itertools

import numpy as np
import pytest

from reader_edge_runtime.decoding.planning.two_pass_planner import Split, best_splits, second_wait
from reader_edge_runtime.draft_tree import DraftTree
from tests.hybrid_states import random_tree

# 0 -> 1 -> 2 -> 3, and 0 -> 4
TREE = DraftTree([5, 6, 7, 8, 9], [-1, 0, 1, 2, 0], ["", *"aaaa"], [1.0, 0.6, 0.5, 0.4, 0.3])
STEEP = np.array([np.inf, 4.0, 10.0, 16.0, 22.0, 28.0])


def test_a_second_pass_is_a_stage_behind_or_as_long_as_it_takes_the_first_stages() -> None:
    assert second_wait(np.array(8.0), np.array([4.0, 8.0, 12.0]), 2).tolist() == [2.0, 4.0, 8.0]
    assert second_wait(np.array(9.0), np.array([3.0, 12.0]), 3).tolist() == [1.0, 6.0]


def test_nodes_that_are_seldom_gone_into_come_behind_where_they_cost_less() -> None:
    one, best = best_splits(TREE, np.array(TREE.values), STEEP, 40.0, 0.0, 2)
    assert (best.num_first, best.num_second) == (1, 3)
    assert best.rate == pytest.approx((1 + 0.6 + 0.5 + 0.4) / (4 + 40 + 0.6 * (16 - 2)))
    assert (one.num_first, one.num_second) == (5, 0)
    assert one.rate == pytest.approx(2.8 / (28 + 40))


def test_one_pass_goes_alone_where_a_draft_is_the_pending_token() -> None:
    one, best = best_splits(DraftTree.root(5), np.ones(1), STEEP, 40.0, 0.0, 2)
    assert one == best == Split(1, 0, 1.0, 44.0)


def test_neither_pass_has_more_nodes_than_were_measured() -> None:
    tree = DraftTree(list(range(9)), [-1, *[0] * 8], [""] * 9, [1.0, *[0.9] * 8])
    _, best = best_splits(tree, np.array(tree.values), np.array([np.inf, 4.0, 4.1, 4.2, 4.3]), 400.0, 0.0, 2)
    assert (best.num_first, best.num_second) == (4, 4)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_split_promises_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, 14, 900)
    for node in range(1, 14):
        tree.values[node] = tree.values[tree.parents[node]] * rng.uniform(0.2, 1)
    gains = np.array([1.0, *(0.7 * value for value in tree.values[1:])])
    worked_s = np.array([np.inf, *rng.uniform(3, 30, 10).cumsum()])
    rest_s, behind_s, num_stages = rng.uniform(0, 100), rng.uniform(0, 5), int(rng.integers(2, 5))
    order = tree.best_first()

    def rate(num_first: int, num_second: int) -> float:
        first, second = order[:num_first], order[num_first : num_first + num_second]
        seconds = worked_s[num_first] + rest_s
        if second:
            entered = sum(gains[node] for node in second if tree.parents[node] in first)
            seconds += behind_s + entered * second_wait(worked_s[num_first], worked_s[num_second], num_stages)
        return float(sum(gains[node] for node in [*first, *second]) / seconds)

    one, best = best_splits(tree, gains, worked_s, rest_s, behind_s, num_stages)
    both = [(a, b) for a, b in itertools.product(range(1, 11), range(11)) if a + b <= 14]
    assert best.rate == pytest.approx(max(rate(*each) for each in both))
    assert best.rate == pytest.approx(rate(best.num_first, best.num_second))
    assert one.rate == pytest.approx(max(rate(num, 0) for num in range(1, 11)))
