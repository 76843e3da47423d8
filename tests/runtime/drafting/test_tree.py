"""The drafted tree is the best one for every budget, by a brute-force reference over all paths."""

from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore, RequestCore
from reader_edge_runtime.drafting.kernels.counts import ORDER
from reader_edge_runtime.drafting.kernels.evidence import advance, gather
from reader_edge_runtime.drafting.kernels.kernel import Packed
from reader_edge_runtime.drafting.parameters import cold_parameters

Path = tuple[int, ...]
_DEPTH = 3


def make_core(seed: int, num_tokens: int = 6) -> DraftingCore:
    """A drafter that has seen some random answers."""
    random = np.random.default_rng(seed)
    core = DraftingCore(DraftConfig(max_nodes=256, max_depth=_DEPTH), cold_parameters())
    for _ in range(3):
        request = core.begin(random.integers(num_tokens, size=20).tolist())
        for _ in range(20):
            request.draft(20, _DEPTH)
            request.observe(random.integers(num_tokens, size=2).tolist())
        request.finish()
    return core


def paths_of(tree: DraftTree) -> list[Path]:
    """Tokens from below the root to each node; the root's path is empty."""
    paths: list[Path] = [()]
    for node in range(1, len(tree)):
        paths.append((*paths[tree.parents[node]], tree.token_ids[node]))
    return paths


@np.errstate(over="ignore")  # of hashes
def move(request: RequestCore, token_ids: Int32Array) -> None:
    """Suppose that the text went on with these tokens, without learning from them."""
    sources, state, _, _, _, evidences, _, _, work = cast(Packed, request._current_arrays()).argument
    for token in token_ids:
        gather(sources, state, evidences[0], work)
        advance(sources, state, token, ORDER)


def predicted_values(request: RequestCore) -> list[float]:
    """Path values of the last draft's nodes before calibration: products of their tokens' probabilities."""
    values: list[float] = request._values[0, : request._num_nodes].tolist()
    return values


def values_of_all_paths(core: DraftingCore, text: list[int]) -> dict[Path, float]:
    """Every path's value, from drafts of one level after each path."""
    values: dict[Path, float] = {(): 1.0}
    level: list[Path] = [()]
    for _ in range(_DEPTH):
        below: list[Path] = []
        for path in level:
            request = core.begin(text)
            move(request, np.array(path, np.int32))
            tree = request.draft(256, 1)
            for token, value in zip(tree.token_ids[1:], predicted_values(request)[1:], strict=True):
                values[(*path, token)] = values[path] * value
                below.append((*path, token))
        level = below
    return values


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 20), length=st.integers(1, 40))
def test_tree_is_the_best_of_its_size_for_every_budget(seed: int, length: int) -> None:
    core = make_core(seed)
    text = np.random.default_rng(seed + 1).integers(6, size=length).tolist()
    values = values_of_all_paths(core, text)
    best = sorted(values.values(), reverse=True)
    previous: set[Path] = set()
    for max_nodes in (2, 3, 5, 9, 17, 40):
        request = core.begin(text)
        tree = request.draft(max_nodes, _DEPTH)
        tree.check(text[-1], 6, max_nodes)
        paths = paths_of(tree)
        assert len(tree) == min(max_nodes, sum(value >= 1e-4 for value in best))
        np.testing.assert_allclose(predicted_values(request), [values[path] for path in paths], rtol=1e-4)
        assert sum(predicted_values(request)) == pytest.approx(sum(best[: len(tree)]), rel=1e-4)
        assert previous <= set(paths)
        previous = set(paths)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 20), max_nodes=st.integers(1, 80), max_depth=st.integers(1, 6))
def test_most_likely_chain_comes_first(seed: int, max_nodes: int, max_depth: int) -> None:
    core = make_core(seed)
    tree = core.begin([1, 2, 3, 1, 2]).draft(max_nodes, max_depth)
    tree.check(2, 6, max_nodes)
    assert len(tree) == 1 or max(tree.ancestors_and_depths()[1]) <= max_depth
    spine = 0
    while True:
        children = [n for n in range(len(tree)) if tree.parents[n] == spine]
        if not children:
            break
        assert children[0] == spine + 1
        assert tree.values[children[0]] >= max(tree.values[n] for n in children) - 1e-6
        spine += 1
    assert all(0 <= value <= 1 for value in tree.values)


@given(seed=st.integers(0, 1 << 20), num_nodes=st.integers(1, 300), reach=st.integers(1, 300))
def test_mask_and_depths_follow_the_parents(seed: int, num_nodes: int, reach: int) -> None:
    random = np.random.default_rng(seed)
    parents = [-1, *(int(random.integers(max(0, node - reach), node)) for node in range(1, num_nodes))]
    tree = DraftTree([0] * num_nodes, parents, [""] * num_nodes, [1.0] * num_nodes)
    expected = np.zeros((num_nodes, num_nodes), np.bool_)
    for node, parent in enumerate(parents):
        if node:
            expected[node] = expected[parent]
        expected[node, node] = True
    ancestors, depths = tree.ancestors_and_depths()
    np.testing.assert_array_equal(ancestors, expected)
    np.testing.assert_array_equal(depths, expected.sum(1) - 1)


def test_the_surest_token_is_the_one_a_draft_of_two_nodes_has_and_changes_no_draft() -> None:
    core = make_core(seed=5)
    request, other = (core.begin([1, 2, 3, 1, 2]) for _ in range(2))
    top_probability = request.top_probability()
    assert top_probability == request.draft(2, 1).values[1] > 0
    assert request.draft(12, _DEPTH) == other.draft(12, _DEPTH)
    assert DraftingCore(DraftConfig(), cold_parameters()).begin([]).top_probability() == 0  # nothing is known
