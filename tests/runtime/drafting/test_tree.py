"""The drafted tree is the best one for every budget; what a source says of a node is evidence on retrieved branches."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore, RequestCore
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.kernels.counts import ORDER
from reader_edge_runtime.drafting.kernels.evidence import advance, gather
from reader_edge_runtime.drafting.kernels.kernel import Packed
from reader_edge_runtime.drafting.parameters import cold_parameters
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.source import DraftSource
from tests.drafted_text import DraftedText, Guess, proposed

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


NO_GUESS: Guess = (), (), ()
RETRIEVING = DraftConfig(is_logits_used=False, is_history_used=False)
LAST, OFTEN, SELDOM = 10, 11, 12  # the text ends with LAST, behind which it had both others before
TEXT = [LAST, OFTEN, 1, 2, LAST, SELDOM, 3, 4, LAST, OFTEN, 5, 6, LAST, OFTEN, 7, 8, LAST]


class SayingHead(DraftSource):
    """Always says the same."""

    name = "head"

    def __init__(self, guess: Guess) -> None:
        self._guess = guess

    def begin(self, context: RequestContext) -> RequestDrafter:
        return RequestDrafter(context)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree]:
        return [proposed(draft_request.request.token_ids[-1], self._guess) for draft_request in draft_requests]


def draft(guess: Guess, text: Sequence[int] = TEXT, max_nodes: int = 16) -> DraftTree:
    return DraftedText(RetrievalDrafter(RETRIEVING, [SayingHead(guess)]).wait(), text).draft(max_nodes, 8)


def says(token_id: int, probability: float) -> Guess:
    return [token_id], [-1], [probability]


def value(tree: DraftTree, *path: int) -> float:
    """Of the node at a path below the root; 0 where there is none."""
    node = node_at(tree, *path)
    return tree.values[node] if node >= 0 else 0.0


def node_at(tree: DraftTree, *path: int) -> int:
    node = 0
    for token_id in path:
        node = tree.child(node, token_id) if node >= 0 else node
    return node


@pytest.mark.parametrize("token_id", [OFTEN, SELDOM])
def test_a_heads_probability_raises_a_retrieved_branch_and_lowers_the_others(token_id: int) -> None:
    other = OFTEN + SELDOM - token_id
    unaided, unsure, sure = (draft(each) for each in (NO_GUESS, says(token_id, 0.3), says(token_id, 0.95)))
    assert value(unaided, OFTEN) > value(unaided, SELDOM) > 0
    assert value(sure, token_id) > value(unsure, token_id)
    assert value(sure, token_id) > value(unaided, token_id)
    assert value(sure, other) < value(unaided, other)


def test_what_a_head_hardly_believes_counts_less_than_where_it_says_nothing() -> None:
    assert value(draft(says(OFTEN, 0.01)), OFTEN) < value(draft(NO_GUESS), OFTEN)


def test_a_head_decides_which_retrieved_branches_a_small_tree_holds() -> None:
    """Pruned without thresholds: the best nodes stay."""
    for token_id, behind in ((OFTEN, {1, 5, 7}), (SELDOM, {3})):
        small = draft(says(token_id, 0.95), max_nodes=3)
        assert small.token_ids[1] == token_id
        assert set(small.token_ids[2:]) <= behind
    assert {OFTEN, SELDOM} <= set(draft(NO_GUESS, max_nodes=16).token_ids)


def test_a_head_prunes_below_its_first_guess_too() -> None:
    first = [OFTEN, 5]
    unaided, sure = draft(NO_GUESS), draft((first, [-1, 0], [0.9, 0.95]))
    assert value(sure, OFTEN, 5) > value(unaided, OFTEN, 5)
    others = [value(sure, OFTEN, token_id) / value(sure, OFTEN) for token_id in (1, 7)]
    before = [value(unaided, OFTEN, token_id) / value(unaided, OFTEN) for token_id in (1, 7)]
    assert all(now < then for now, then in zip(others, before, strict=True))


def test_retrieved_text_goes_on_behind_a_heads_guess() -> None:
    text = [20, 50, 51, 52, 53, 21, 22, 99]  # nothing ever followed 99
    tree = draft(says(50, 0.9), text)
    node = node_at(tree, 50, 51, 52, 53)
    assert node > 0
    assert tree.sources[tree.child(0, 50)] == "head"
    assert tree.sources[node] == "context"
    assert value(tree, 50, 51, 52, 53) > value(draft(NO_GUESS, text), 50, 51, 52, 53)


def test_a_guess_that_was_retrieved_too_is_one_node_with_what_both_say_below() -> None:
    text = [20, 50, 51, 52, 21, 50, 88, 22, 99]
    tree = draft(([50, 51, 77], [-1, 0, 0], [0.9, 0.3, 0.7]), text, max_nodes=64)
    below = [tree.token_ids[node] for node in range(len(tree)) if tree.parents[node] == tree.child(0, 50)]
    assert sorted(below) == sorted(set(below))
    assert {51, 77, 88} <= set(below)
    assert node_at(tree, 50, 51, 52) > 0


@pytest.mark.parametrize(("guessed", "follows", "other"), [((2, 50), 60, 61), ((4, 50), 61, 60)])
def test_behind_guesses_the_longest_match_decides(guessed: tuple[int, int], follows: int, other: int) -> None:
    """Two places of the text agree with the last guess, one of them with both."""
    text = [1, 2, 50, 60, 3, 4, 50, 61, 5, 99]
    tree = draft((guessed, [-1, 0], [0.9, 0.9]), text, max_nodes=32)
    assert value(tree, *guessed, follows) > value(tree, *guessed, other)


def test_a_copy_is_found_again_behind_what_was_inserted() -> None:
    passage, others = [*range(20, 32), LAST, OFTEN, 40], 4 * [1, LAST, SELDOM, 2]
    edited, elsewhere = ([*begun, 50, 51, LAST] for begun in (range(20, 32), range(60, 72)))
    found, lost = (_value_after([*passage, *others], answer) for answer in (edited, elsewhere))
    assert found > 1.5 * lost > 0


def _value_after(prompt: list[int], answer: list[int]) -> float:
    """Of OFTEN, next."""
    request = DraftedText(RetrievalDrafter(RETRIEVING).wait(), prompt)
    request.go_on(answer)
    return value(request.draft(16, 8), OFTEN)


def test_a_token_that_never_comes_where_it_is_named_is_trusted_less_elsewhere() -> None:
    """Two tokens are named as often, each behind tokens of its own, which come again: one follows, the other not."""
    before = [list(range(100, 160)), list(range(200, 260))]
    prompt = [each for pair in zip(*before, strict=True) for each in (pair[0], OFTEN, pair[1], SELDOM)]
    request = DraftedText(RetrievalDrafter(RETRIEVING).wait(), prompt)
    for number, pair in enumerate(zip(*(tokens[:50] for tokens in before), strict=True)):
        request.go_on([pair[0], OFTEN, 300 + number, pair[1], 400 + number])
        request.draft(8, 8)
    trusted = _value_behind(request, before[0][55], OFTEN)
    doubted = _value_behind(request, before[1][55], SELDOM)
    assert trusted > 2 * doubted > 0


def _value_behind(request: DraftedText, token_id: int, named: int) -> float:
    request.go_on([token_id])
    return value(request.draft(8, 8), named)


def test_evidence_that_comes_true_behind_one_token_alone_is_trusted_behind_that_one() -> None:
    """No token is named twice, so that biases of tokens tell nothing."""
    true, false, num = 10, 11, 50
    begins, ends = (list(range(first, first + 2 * num + 10)) for first in (100, 300))
    text = [
        each
        for i in range(num + 5)
        for each in (begins[2 * i], true, ends[2 * i], begins[2 * i + 1], false, ends[2 * i + 1])
    ]
    request = DraftedText(RetrievalDrafter(RETRIEVING).wait(), text)
    for i in range(num):
        request.go_on([begins[2 * i], true, ends[2 * i], begins[2 * i + 1], false, 500 + i])
        request.draft(8, 8)
    request.go_on([begins[2 * num]])
    trusted = _value_behind(request, true, ends[2 * num])
    request.go_on([ends[2 * num], begins[2 * num + 1]])
    assert trusted > 1.5 * _value_behind(request, false, ends[2 * num + 1]) > 0
