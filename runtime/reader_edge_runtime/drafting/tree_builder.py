"""Best-first tree: the n most valuable paths, for any n at once."""

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reader_edge_runtime.draft_tree import DraftTree

# A node this unlikely cannot repay the widening of the pass: 1/50 of a token against 2 to 4 % of a pass.
MIN_PATH_VALUE = 0.02


class Candidate(NamedTuple):
    """A token that may follow, its estimated probability, and the source that gave most of it."""

    token_id: int
    probability: float
    source: str


def build_tree(
    root_token_id: int,
    candidates: Callable[[tuple[int, ...]], Sequence[Candidate]],
    max_nodes: int,
    max_depth: int,
) -> DraftTree:
    """Take the node of the highest path value, again and again.

    candidates: given the tokens below the root, what may follow. A path's value is the product of its nodes'
    probabilities, so a child is never worth more than its parent and the n best nodes always form a tree. Nodes come
    out in the order of their value.
    """
    tree = DraftTree.root(root_token_id)
    heap: list[tuple[float, int, int, tuple[int, ...], Candidate]] = []
    num_pushed = 0

    def expand(node: int, path: tuple[int, ...], value: float) -> None:
        nonlocal num_pushed
        for candidate in candidates(path):
            path_value = value * candidate.probability
            if path_value >= MIN_PATH_VALUE:
                num_pushed += 1  # orders equals, and keeps the heap from comparing paths
                heapq.heappush(heap, (-path_value, num_pushed, node, path, candidate))

    if max_nodes > 1:
        expand(0, (), 1.0)
    while heap and len(tree) < max_nodes:
        negative_value, _, parent, path, candidate = heapq.heappop(heap)
        node = tree.add(candidate.token_id, parent, candidate.source, -negative_value)
        if len(path) + 1 < max_depth and len(tree) < max_nodes:
            expand(node, (*path, candidate.token_id), -negative_value)
    return tree
