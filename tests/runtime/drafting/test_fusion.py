"""Fusion: what a head says of a node is evidence on retrieved branches there, and retrieved text goes on behind it."""

from collections.abc import Sequence

import pytest

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.source import DraftSource
from tests.drafted_text import DraftedText
from tests.runtime.drafting.proposed import Guess, proposed

NO_GUESS: Guess = (), (), ()
RETRIEVING = DraftConfig(is_logits_used=False, is_history_used=False)
LAST, OFTEN, SELDOM = 10, 11, 12  # the text ends with LAST, behind which it had both others before
TEXT = [LAST, OFTEN, 1, 2, LAST, SELDOM, 3, 4, LAST, OFTEN, 5, 6, LAST, OFTEN, 7, 8, LAST]


class Head(DraftSource):
    """Always says the same."""

    name = "head"

    def __init__(self, guess: Guess) -> None:
        self._guess = guess

    def begin(self, context: RequestContext) -> RequestDrafter:
        return RequestDrafter(context)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree]:
        return [proposed(draft_request.request.token_ids[-1], self._guess) for draft_request in draft_requests]


def draft(guess: Guess, text: Sequence[int] = TEXT, max_nodes: int = 16) -> DraftTree:
    return DraftedText(RetrievalDrafter(RETRIEVING, [Head(guess)]).wait(), text).draft(max_nodes, 8)


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
def test_behind_guesses_the_longest_match_decides_what_goes_on(
    guessed: tuple[int, int], follows: int, other: int
) -> None:
    """Two places of the text agree with the last guess, one of them with both."""
    text = [1, 2, 50, 60, 3, 4, 50, 61, 5, 99]
    tree = draft((guessed, [-1, 0], [0.9, 0.9]), text, max_nodes=32)
    assert value(tree, *guessed, follows) > value(tree, *guessed, other)
