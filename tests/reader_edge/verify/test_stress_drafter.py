"""The stress drafter's trees are valid, deterministic, and hold both the answer and its enemies."""

from itertools import pairwise

from reader_edge.verify.drafters import StressDrafter
from reader_edge_runtime.draft_tree import DraftTree
from tests.drafted_text import DraftedText

PROMPT = (1, 2, 3)
ANSWER = list(range(100, 180))
VOCAB_SIZE = 200


def _trees(seed: int = 0, max_nodes: int = 64, max_depth: int = 64) -> list[DraftTree]:
    """Trees of a request that accepts three tokens a step."""
    text = DraftedText(StressDrafter([(PROMPT, ANSWER)], VOCAB_SIZE, seed), PROMPT)
    text.go_on(ANSWER[:1])
    trees = []
    for start in range(1, 61, 3):
        trees.append(text.draft(max_nodes, max_depth))
        text.go_on(ANSWER[start : start + 3])
    return trees


def _right_path(tree: DraftTree) -> list[int]:
    """Nodes that verification would walk."""
    path = [0]
    position = ANSWER.index(tree.token_ids[0]) + 1
    while (child := tree.child(path[-1], ANSWER[position])) >= 0:
        path.append(child)
        position += 1
    return path


def test_trees_are_valid_and_start_at_the_pending_token() -> None:
    for step, tree in enumerate(_trees()):
        tree.check(ANSWER[3 * step], VOCAB_SIZE, max_nodes=64)


def test_trees_hold_the_answer_scattered_among_wrong_branches() -> None:
    paths = [_right_path(tree) for tree in _trees()]
    assert max(map(len, paths)) > 8
    assert min(map(len, paths)) < 4
    assert sum(b - a > 1 for path in paths for a, b in pairwise(path)) > 20
    assert all("wrong" in tree.sources for tree in _trees())


def test_the_same_seed_gives_the_same_trees() -> None:
    assert _trees(seed=1) == _trees(seed=1)
    assert _trees(seed=1) != _trees(seed=2)


def test_trees_keep_to_their_bounds() -> None:
    assert all(len(tree) <= 5 for tree in _trees(max_nodes=5))
    assert all(tree.ancestors_and_depths()[1].max() <= 2 for tree in _trees(max_depth=2))
    assert all(len(tree) == 1 for tree in _trees(max_nodes=1))
