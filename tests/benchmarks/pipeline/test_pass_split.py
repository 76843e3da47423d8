"""Two passes over one draft: which nodes each gets, and when the second is waited for."""

import numpy as np
import pytest

from benchmarks.pipeline.pass_split import best_split, cut, num_taken, second_wait
from reader_edge_runtime.draft_tree import DraftTree

# 0 -> 1 -> 2 -> 3, and 0 -> 4
TREE = DraftTree([5, 6, 7, 8, 9], [-1, 0, 1, 2, 0], ["", *"aaaa"], [1.0, 0.6, 0.5, 0.4, 0.3])
STEEP = np.array([np.inf, 4.0, 10.0, 16.0, 22.0, 28.0])


def test_a_second_pass_is_a_stage_behind_or_as_long_as_it_takes_the_first_stages() -> None:
    assert second_wait(8.0, np.array([np.inf, 4.0, 8.0, 12.0]), 2).tolist() == [0.0, 2.0, 4.0, 8.0]
    assert second_wait(9.0, np.array([3.0, 12.0]), 3).tolist() == [1.0, 6.0]


def test_nodes_that_are_seldom_gone_into_come_behind_where_they_cost_less() -> None:
    split = best_split(TREE, 1.0, STEEP, 40.0, 2, "anywhere")
    assert (split.first, split.second) == ([0], [1, 2, 3])
    assert split.rate == pytest.approx((1 + 0.6 + 0.5 + 0.4) / (4 + 40 + 0.6 * (16 - 2)))
    ordinary = best_split(TREE, 1.0, STEEP, 40.0, 2, "nowhere")
    assert (ordinary.first, ordinary.second) == ([0, 1, 2, 3, 4], [])
    assert ordinary.rate == pytest.approx(2.8 / (28 + 40))


def test_a_second_pass_may_be_held_below_the_likeliest_leaf() -> None:
    tree = DraftTree([5, 6, 7, 8, 9], [-1, 0, 0, 1, 2], ["", *"aaaa"], [1.0, 0.6, 0.35, 0.3, 0.25])
    times = np.array([np.inf, 4.0, 4.0, 4.0, 90.0, 90.0])
    anywhere, leaf = (best_split(tree, 1.0, times, 40.0, 2, where) for where in ("anywhere", "leaf"))
    assert (anywhere.first, anywhere.second) == ([0, 1, 2], [3, 4])
    assert (leaf.first, leaf.second) == ([0, 1, 2], [3])


def test_a_cut_tree_keeps_parents_and_tells_how_far_a_text_goes() -> None:
    tree = cut(TREE, [0, 4, 1])
    assert (tree.token_ids, tree.parents, tree.values) == ([5, 6, 9], [-1, 0, 0], [1.0, 0.6, 0.3])
    assert [num_taken(TREE, text) for text in ([6, 7, 8, 6], [6, 9], [9], [], [1])] == [3, 1, 1, 0, 0]
