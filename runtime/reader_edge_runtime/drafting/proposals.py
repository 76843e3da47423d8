"""Trees that further sources of drafts propose: checked, and packed into arrays for the compiled drafting kernels."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int32Array, Int64Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.kernels.layout import ANY_TOKEN
from reader_edge_runtime.errors import DraftError

MAX_TOKEN_ID = 2**31 - 2
PROBABILITY_BUCKETS = 32

_TOKEN, _CHILD, _SIBLING, _CLASS = range(4)
_ROUNDING = 1e-9  # of a share that is a quotient of two values
NO_PROPOSALS: Int32Array = np.zeros((1, 4), np.int32)

# Classes of what a block says of a place, behind those of PROBABILITY_BUCKETS: by how often the path before it left the
# block's own best (0, 1, 2 or more), the place, whether the token is the block's best there, and its probability.
MOST_DEVIATIONS = 2
PLACE_EDGES = (1, 2, 4)  # first places of the second bucket and of those behind it
SHARE_EDGES = (0.015, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95)
BLOCK_CLASSES = (MOST_DEVIATIONS + 1, len(PLACE_EDGES) + 1, 2, len(SHARE_EDGES) + 1)
_LEAST_SHARE = 0.002  # below which a token is left out


@dataclass(slots=True)
class BlockTree(DraftTree):
    """What a speculator says of the places behind a text's last token, whatever stands between: the chain of the
    likeliest tokens as a tree, and of each place several.

    lattice: int32 (P, 4), as `pack_proposals` has nodes, but that they are counted from the root. A path may go through
    any tokens, so all of one depth and of as many deviations have the same children.
    """

    lattice: Int32Array = field(default_factory=lambda: NO_PROPOSALS)

    @classmethod
    def of(
        cls, token_id: int, top_ids: Int64Array, probabilities: Float32Array, vocab_size: int, source: str
    ) -> "BlockTree":
        """token_id: the text's last. top_ids, probabilities: int64 and float32 (places, K), likeliest first.

        What is no probability, or no token's id, is left out with all behind it. A place with nothing, or with
        a token twice, ends the block.
        """
        with np.errstate(invalid="ignore"):
            is_usable = (top_ids >= 0) & (top_ids < vocab_size) & (probabilities >= _LEAST_SHARE) & (probabilities <= 1)
            is_usable[:, 1:] &= probabilities[:, 1:] <= probabilities[:, :-1]
        places: list[tuple[Int64Array, Float32Array]] = []
        for count, ids, shares in zip(is_usable.cumprod(axis=1).sum(axis=1), top_ids, probabilities, strict=True):
            if not count or len(np.unique(ids[:count])) < count:
                break
            places.append((ids[:count], shares[:count]))
        tree = cls([token_id], [-1], [""], [1.0], _lattice(token_id, places))
        for ids, shares in places:
            tree.add(int(ids[0]), len(tree) - 1, source, tree.values[-1] * float(shares[0]))
        return tree


def _lattice(token_id: int, places: Sequence[tuple[Int64Array, Float32Array]]) -> Int32Array:
    """places: of each, ids and probabilities of its tokens."""
    deviations = np.arange(MOST_DEVIATIONS + 1)[:, None]
    sizes = [len(ids) + 1 for ids, _ in places]  # with one for all other tokens
    starts = [1, *(1 + len(deviations) * np.cumsum(sizes, dtype=np.int64)).tolist()]
    nodes = np.zeros((starts[-1], 4), np.int32)
    nodes[0] = token_id, starts[0] if places else 0, 0, 0
    for place, (ids, shares) in enumerate(places):
        start, size, is_best = starts[place], sizes[place], np.arange(sizes[place]) == 0
        lists = nodes[start : starts[place + 1]].reshape(len(deviations), size, 4)
        lists[:, :-1, _TOKEN], lists[:, -1, _TOKEN] = ids, ANY_TOKEN
        lists[:, :-1, _SIBLING] = start + deviations * size + np.arange(1, size)
        if place + 1 < len(places):
            after = np.minimum(deviations + ~is_best, MOST_DEVIATIONS)
            lists[:, :, _CHILD] = starts[place + 1] + after * sizes[place + 1]
        kind = deviations * BLOCK_CLASSES[1] + sum(place >= edge for edge in PLACE_EDGES)
        share = np.searchsorted(SHARE_EDGES, shares, side="right")
        number = (kind * BLOCK_CLASSES[2] + is_best[:-1]) * BLOCK_CLASSES[3] + share
        lists[:, :-1, _CLASS] = PROBABILITY_BUCKETS + number
    return nodes


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
    sizes = [0 if tree is None else len(tree.lattice if isinstance(tree, BlockTree) else tree) for tree in trees]
    nodes = np.zeros((1 + sum(sizes), 4), np.int32)
    roots: list[int] = []
    root = 1
    for tree, size in zip(trees, sizes, strict=True):
        roots.append(-1 if tree is None else root)
        if isinstance(tree, BlockTree):
            nodes[root : root + size] = tree.lattice
            links = nodes[root : root + size, _CHILD : _SIBLING + 1]
            links += root * (links > 0)
        elif tree is not None:
            _pack(tree, nodes, root)
        root += size
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
