"""Trees that further sources of drafts propose: checked, and packed into arrays for the compiled drafting kernels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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


class Place(NamedTuple):
    """token_ids: int64 (n,), the likeliest ones of a place. shares: float32 (P, n), their probabilities behind each of
    those of the place before and, last, behind any other token; P is 1 where that does not matter."""

    token_ids: Int64Array
    shares: Float32Array


@dataclass(slots=True)
class BlockTree(DraftTree):
    """What a speculator says of the places behind a text's last token, whatever stands between: the chain of the
    likeliest tokens as a tree, and of each place several.

    lattice: int32 (P, 4), as `pack_proposals` has nodes, but that they are counted from the root. A path may go through
    any tokens, so all of one depth and of as many deviations have the same children, but for what their own token is.
    """

    lattice: Int32Array = field(default_factory=lambda: NO_PROPOSALS)

    @classmethod
    def of(
        cls,
        token_id: int,
        top_ids: Int64Array,
        probabilities: Float32Array,
        vocab_size: int,
        source: str,
        pairs: Float32Array | None = None,
    ) -> "BlockTree":
        """token_id: the text's last. top_ids, probabilities: int64 and float32 (places, K), likeliest first.

        pairs: float32 (places, K, K), how likely each is behind each of the place before; of the first place the rows
        are alike. What is no probability, or no token's id, is left out with all behind it. A place with nothing, or
        with a token twice, ends the block.
        """
        with np.errstate(invalid="ignore"):
            is_usable = (top_ids >= 0) & (top_ids < vocab_size) & (probabilities >= _LEAST_SHARE) & (probabilities <= 1)
            is_usable[:, 1:] &= probabilities[:, 1:] <= probabilities[:, :-1]
        places: list[Place] = []
        for number, count in enumerate(is_usable.cumprod(axis=1).sum(axis=1).tolist()):
            token_ids, shares = top_ids[number, :count], probabilities[number : number + 1, :count]
            if not count or len(np.unique(token_ids)) < count:
                break
            if pairs is not None:
                behind = pairs[number, : len(places[-1].token_ids) if places else 1, :count]
                shares = np.concatenate([behind, shares]) if places else behind
                if not ((shares >= 0) & (shares <= 1)).all():
                    break
            places.append(Place(token_ids, shares))
        tree, before = cls([token_id], [-1], [""], [1.0], _lattice(token_id, places)), 0
        for each in places:
            shares = each.shares[min(before, len(each.shares) - 1)]
            before = int(shares.argmax())
            tree.add(int(each.token_ids[before]), len(tree) - 1, source, tree.values[-1] * float(shares[before]))
        return tree


def _lattice(token_id: int, places: Sequence[Place]) -> Int32Array:
    """A list of each place's tokens for every number of deviations, and for every token before where that matters."""
    num_kinds = MOST_DEVIATIONS + 1
    shapes = [(len(each.shares), len(each.token_ids) + 1) for each in places]  # with one for all other tokens
    starts = [1, *(1 + num_kinds * np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)).tolist()]
    nodes = np.zeros((starts[-1], 4), np.int32)
    nodes[0] = token_id, starts[0] if places else 0, 0, 0
    deviations = np.arange(num_kinds)[:, None, None]
    for number, (each, (num_before, size)) in enumerate(zip(places, shapes, strict=True)):
        lists = nodes[starts[number] : starts[number + 1]].reshape(num_kinds, num_before, size, 4)
        lists[..., :-1, _TOKEN], lists[..., -1, _TOKEN] = each.token_ids, ANY_TOKEN
        lists[..., _SIBLING] = np.arange(starts[number] + 1, starts[number + 1] + 1).reshape(lists.shape[:3])
        lists[..., -1, _SIBLING] = 0
        is_best = np.arange(size) == each.shares.argmax(-1)[:, None]
        if number + 1 < len(places):
            num_next, next_size = shapes[number + 1]
            kind = np.minimum(deviations + ~is_best, MOST_DEVIATIONS)
            lists[..., _CHILD] = starts[number + 1] + (kind * num_next + np.arange(size) % num_next) * next_size
        kind = deviations * BLOCK_CLASSES[1] + sum(number >= edge for edge in PLACE_EDGES)
        share = np.searchsorted(SHARE_EDGES, each.shares, side="right")
        lists[..., :-1, _CLASS] = (
            PROBABILITY_BUCKETS + share + BLOCK_CLASSES[3] * (kind * BLOCK_CLASSES[2] + is_best[:, :-1])
        )
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
