"""Trees that further sources of drafts propose: checked, and packed into arrays for the compiled drafting kernels."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import DraftError

MAX_TOKEN_ID = 2**31 - 2
PROBABILITY_BUCKETS = 32

_CHILD = 1
_ROUNDING = 1e-9  # of a share that is a quotient of two values
NO_PROPOSALS: Int32Array = np.zeros((1, 4), np.int32)


def check_proposal(tree: DraftTree, root_token_id: int, source: str) -> None:
    """Raise DraftError unless this is a tree of possible tokens below the text's last one."""
    token_ids, parents, values = tree.token_ids, tree.parents, tree.values
    if not token_ids or not len(token_ids) == len(parents) == len(values):
        raise DraftError(f"Source {source!r} proposed lists of different lengths: {tree!r:.200}.")
    if token_ids[0] != root_token_id or parents[0] != -1 or values[0] != 1:
        raise DraftError(f"Source {source!r} proposed no tree below the last token {root_token_id}: {tree!r:.200}.")
    for node in range(1, len(token_ids)):
        parent, value = parents[node], values[node]
        if not 0 <= token_ids[node] <= MAX_TOKEN_ID:
            raise DraftError(f"Source {source!r} proposed token id {token_ids[node]}.")
        if not 0 <= parent < node:
            raise DraftError(f"Source {source!r} proposed node {node} below {parent}, which does not come before it.")
        if not 0 <= value <= values[parent] * (1 + _ROUNDING):
            raise DraftError(f"Source {source!r} proposed a value of {value} below one of {values[parent]}.")


def pack_proposals(trees: Sequence[DraftTree | None]) -> tuple[Int32Array, list[int]]:
    """Proposals as kernels walk them, int32 (P, 4), and the number of each one's root, -1 where there is none.

    Each node: token, first child, next sibling (0 for none), class; node 0 stands for "none".
    trees: checked ones.
    """
    nodes = np.zeros((1 + sum(len(tree) for tree in trees if tree is not None), 4), np.int32)
    roots: list[int] = []
    root = 1
    for tree in trees:
        roots.append(-1 if tree is None else root)
        if tree is not None:
            _pack(tree, nodes, root)
            root += len(tree)
    return nodes, roots


def _pack(tree: DraftTree, nodes: Int32Array, root: int) -> None:
    places = [root]  # of each node
    known: dict[tuple[int, int], int] = {}
    for number in range(1, len(tree)):
        token_id, parent, value = tree.token_ids[number], tree.parents[number], tree.values[number]
        above = places[parent]
        node = known.setdefault((above, token_id), root + number)
        places.append(node)
        if node == root + number:
            share = value / tree.values[parent] if value else 0.0
            bucket = min(int(PROBABILITY_BUCKETS * share + _ROUNDING), PROBABILITY_BUCKETS - 1)
            nodes[node] = token_id, 0, nodes[above, _CHILD], bucket
            nodes[above, _CHILD] = node
