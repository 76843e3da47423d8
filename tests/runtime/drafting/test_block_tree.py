"""What a block says of the next places, in one tree with all else: it judges whatever path leads there."""

from collections.abc import Sequence

import numpy as np
import pytest

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.proposals import (
    BLOCK_CLASSES,
    PROBABILITY_BUCKETS,
    BlockTree,
    check_proposal,
    pack_proposals,
)
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.source import DraftSource
from tests.drafted_text import DraftedText

VOCAB_SIZE = 100
IDS = np.array([[11, 12, 13], [21, 22, 23], [31, 32, 33]])
SHARES = np.array([[0.6, 0.3, 0.05], [0.5, 0.4, 0.01], [0.96, 0.02, 0.01]], np.float32)


def block(
    token_id: int = 9, ids: np.ndarray = IDS, shares: np.ndarray = SHARES, pairs: np.ndarray | None = None
) -> BlockTree:
    return BlockTree.of(token_id, ids, shares, VOCAB_SIZE, "block", pairs)


def named(tree: BlockTree, path: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """What follows a path, as a kernel finds it: tokens, and deviations, place, is the best, share of their classes."""
    nodes, (_, root) = pack_proposals([DraftTree.chain([9, 9]), tree])
    node = root
    for token_id in path:
        node = nodes[node, 1]
        while nodes[node, 0] not in (token_id, -1):
            node = nodes[node, 2]
    found, child = {}, nodes[node, 1]
    while child and nodes[child, 0] != -1:
        place = np.unravel_index(nodes[child, 3] - PROBABILITY_BUCKETS, BLOCK_CLASSES)
        found[int(nodes[child, 0])] = tuple(int(each) for each in place)
        child = nodes[child, 2]
    return found


def test_any_path_is_followed_by_what_the_block_has_at_its_end_and_classed_by_where_it_left_the_best() -> None:
    tree = block()
    check_proposal(tree, 9, "block")
    assert (tree.token_ids, tree.parents) == ([9, 11, 21, 31], [-1, 0, 1, 2])
    assert tree.values == pytest.approx([1, 0.6, 0.3, 0.288])
    assert named(tree, []) == {11: (0, 0, 1, 5), 12: (0, 0, 0, 4), 13: (0, 0, 0, 2)}
    assert named(tree, [11]) == {21: (0, 1, 1, 5), 22: (0, 1, 0, 4), 23: (0, 1, 0, 0)}
    for others, deviations in (([12], 1), ([77], 1), ([11, 22], 1), ([12, 22], 2), ([77, 78], 2), ([77, 21], 1)):
        after = named(tree, others)
        assert list(after) == IDS[len(others)].tolist()
        assert {each[0] for each in after.values()} == {deviations}
    assert named(tree, [11, 21, 31]) == {}


def test_where_a_token_before_matters_each_has_what_follows_it_and_others_what_is_likely_behind_any() -> None:
    pairs = np.repeat(SHARES[:, None], 3, axis=1)
    pairs[0] = [0.1, 0.8, 0.05]
    pairs[1] = [[0.5, 0.4, 0.01], [0.1, 0.2, 0.6], [0.3, 0.3, 0.31]]
    tree = block(pairs=pairs)
    check_proposal(tree, 9, "block")
    assert tree.token_ids == [9, 12, 23, 31]
    assert tree.values == pytest.approx([1, 0.8, 0.48, 0.4608])
    assert named(tree, [12]) == {21: (0, 1, 0, 2), 22: (0, 1, 0, 3), 23: (0, 1, 1, 5)}
    assert named(tree, [11]) == {21: (1, 1, 1, 5), 22: (1, 1, 0, 4), 23: (1, 1, 0, 0)}
    assert named(tree, [13])[23] == (1, 1, 1, 4)
    assert named(tree, [77]) == {21: (1, 1, 1, 5), 22: (1, 1, 0, 4), 23: (1, 1, 0, 0)}
    assert {each[0] for each in named(tree, [12, 23]).values()} == {0}
    pairs[1, 1, 0] = np.nan
    assert block(pairs=pairs).token_ids == [9, 12]


@pytest.mark.parametrize(
    ("row", "odd", "left"),
    [
        (0, (-1, 0.9), [9]),
        (1, (VOCAB_SIZE, 0.9), [9, 11]),
        (1, (1 << 62, 0.9), [9, 11]),
        (1, (21, np.nan), [9, 11]),
        (1, (21, np.inf), [9, 11]),
        (2, (31, -1.0), [9, 11, 21]),
        (1, (22, 0.5), [9, 11]),  # named twice
    ],
)
def test_guesses_that_cannot_be_end_the_block(row: int, odd: tuple[int, float], left: list[int]) -> None:
    ids, shares = IDS.copy(), SHARES.copy()
    ids[row, 0], shares[row, 0] = odd
    tree = block(ids=ids, shares=shares)
    assert tree.token_ids == left
    assert named(tree, left[1:]) == {}


class BlockSource(DraftSource):
    """Says the same of the next places, whatever the text."""

    name = "block"

    def begin(self, context: RequestContext) -> RequestDrafter:
        return RequestDrafter(context)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | None]:
        return [block(each.request.token_ids[-1]) for each in draft_requests]


def begun(text: Sequence[int]) -> DraftedText:
    drafter = RetrievalDrafter(DraftConfig(max_nodes=32, is_logits_used=False), [BlockSource()]).wait()
    return DraftedText(drafter, text)


def value(tree: DraftTree, path: Sequence[int]) -> float:
    node = 0
    for token_id in path:
        node = tree.child(node, token_id)
    return tree.values[node] if node > 0 else 0.0


def share(tree: DraftTree, path: Sequence[int]) -> float:
    return value(tree, path) / value(tree, path[:-1])


def test_what_a_block_says_behind_a_token_that_was_not_its_best_is_worth_what_came_of_it() -> None:
    text, rng = begun([1, 2, 3]), np.random.default_rng(0)
    for _ in range(150):  # half the time its own best comes, else another of its tokens and then none
        text.draft(32, 8)
        text.go_on([11, 21, 31] if rng.random() < 0.5 else [12, *rng.integers(40, 99, 2).tolist()])
        text.go_on(rng.integers(40, 99, 8).tolist())  # so that nothing else knows
    tree = text.draft(32, 8)
    assert share(tree, [11, 21]) > 0.5 > 0.2 > share(tree, [12, 21])


def test_a_retrieved_branch_is_worth_what_the_block_gives_to_its_tokens() -> None:
    # Both followed 5, and the block names the one's later tokens.
    tree = begun([5, 77, 21, 31, 8, 5, 78, 41, 42, 8, 5]).draft(32, 8)
    assert share(tree, [77, 21]) > share(tree, [78, 41]) > 0
