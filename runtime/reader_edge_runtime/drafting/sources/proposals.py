"""Proposals of sources as one array, the way kernels walk them."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Int32Array
from reader_edge_runtime.drafting.kernels.layout import PROBABILITY_BUCKETS
from reader_edge_runtime.drafting.sources.source import Proposal

_CHILD = 1
NO_PROPOSALS: Int32Array = np.zeros((1, 4), np.int32)


def pack_proposals(proposals: Sequence[Proposal]) -> tuple[Int32Array, list[int]]:
    """(P, 4) int32: token, first child, next sibling (0 for none), class; and the number of each proposal's root.

    proposals: checked ones, NUM_PROPOSALS at most.
    """
    nodes = np.zeros((1 + sum(1 + len(proposal.token_ids) for proposal in proposals), 4), np.int32)
    roots: list[int] = []
    root = 1  # node 0 stands for "none"
    for proposal in proposals:
        roots.append(root)
        places = [root]  # of the text's end, then of each token
        known: dict[tuple[int, int], int] = {}
        for i, parent in enumerate(proposal.parents):
            above = places[1 + parent]
            node = known.setdefault((above, proposal.token_ids[i]), root + 1 + i)
            places.append(node)
            if node != root + 1 + i:
                continue
            bucket = min(int(proposal.probabilities[i] * PROBABILITY_BUCKETS), PROBABILITY_BUCKETS - 1)
            nodes[node] = proposal.token_ids[i], 0, nodes[above, _CHILD], bucket
            nodes[above, _CHILD] = node
        root += 1 + len(proposal.token_ids)
    return nodes, roots
