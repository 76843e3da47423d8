"""The seam for further sources: a draft model, a head over hidden states, a tool-call schema.

A source proposes a small tree for each request before each draft. How much its tokens count beside others is learned
from how its proposals of each probability fared. Context, history, successors and datastores are compiled in instead:
they are looked up at every node of a tree, and a call into Python takes longer than a draft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.drafting.drafter import DraftWish, RequestDrafter
from reader_edge_runtime.drafting.kernels.arrays import Int32Array
from reader_edge_runtime.errors import DraftError

MAX_TOKEN_ID = 2**31 - 2
PROBABILITY_BUCKETS = 32

Arrays = Mapping[str, npt.NDArray[Any]]

_CHILD = 1
NO_PROPOSALS: Int32Array = np.zeros((1, 4), np.int32)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may follow a text, as parallel lists.

    parents[i] is the number of the proposed token before token i, or -1 where token i follows the text itself; always
    below i. probabilities[i]: how sure the source is that token i follows its parent, from 0 to 1. A token named again
    below its parent is the same node, as sure as the first naming.
    """

    token_ids: Sequence[int]
    parents: Sequence[int]
    probabilities: Sequence[float]

    def check(self, source: str) -> None:
        """Raise DraftError unless this is a tree of possible tokens."""
        if not len(self.token_ids) == len(self.parents) == len(self.probabilities):
            raise DraftError(f"Source {source!r} proposed lists of different lengths: {self!r:.200}.")
        for i, (token_id, parent) in enumerate(zip(self.token_ids, self.parents, strict=True)):
            if not 0 <= token_id <= MAX_TOKEN_ID:
                raise DraftError(f"Source {source!r} proposed token id {token_id}.")
            if not -1 <= parent < i:
                raise DraftError(f"Source {source!r} proposed node {i} below {parent}, which does not come before it.")
            if not 0 <= self.probabilities[i] <= 1:
                raise DraftError(f"Source {source!r} proposed a probability of {self.probabilities[i]}.")


NO_GUESS = Proposal((), (), ())


def pack_proposals(proposals: Sequence[Proposal]) -> tuple[Int32Array, list[int]]:
    """Proposals as kernels walk them, int32 (P, 4), and the number of each one's root.

    Each node: token, first child, next sibling (0 for none), class; node 0 stands for "none".
    proposals: checked ones.
    """
    nodes = np.zeros((1 + sum(1 + len(proposal.token_ids) for proposal in proposals), 4), np.int32)
    roots: list[int] = []
    root = 1
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


class Source(Protocol):
    """Proposes for all requests of a step at once; the time it takes counts as time of drafting.

    name: as it appears in the statistics.
    wants_hidden_states: whether the scores that its requests observe shall hold the target's hidden states.
    """

    name: str
    wants_hidden_states: bool

    def begin(self, token_ids: Sequence[int]) -> RequestDrafter:
        """Its state for one request. token_ids: the request's own list, which holds the prompt and grows."""

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        """What may follow each request's text; `wish.request` is what `begin` gave for it.

        Where it raises, it is asked again for each request alone, and those for which it raises again end.
        """

    def state(self) -> Arrays:
        """What it has learned, as named arrays of int32, int64, float32, float64 or uint8; {} for nothing."""

    def restore(self, arrays: Arrays) -> None:
        """Take up what `state` gave, maybe long ago; of {}, start over.

        The arrays come from a file: raises whatever it likes where they are not what it could have given.
        """


@runtime_checkable
class CostlySource(Source, Protocol):
    """One that takes so long that others may make it needless."""

    def is_worth_asking(self, wish: DraftWish, promised: float) -> bool:
        """Whether to ask for a request; `wish.request` is what `begin` gave for it. Never raises.

        promised: how sure the compiled sources are of the likeliest next token, and others that proposed before.
        """


@runtime_checkable
class WeighedSource(CostlySource, Protocol):
    """One that is told what asking it brought, to know where it pays."""

    def learn_gain(self, request: RequestDrafter, num_gained: int, seconds: float) -> None:
        """Hear of a step for which it was asked.

        request: what `begin` gave. num_gained: accepted tokens beyond those of a draft of as many nodes without it,
        maybe below 0. seconds: that asking and drafting again took.
        """
