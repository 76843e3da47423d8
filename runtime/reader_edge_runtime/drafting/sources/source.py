"""The seam for further sources: a draft model, a tool-call schema. Context and history are compiled in.

A source proposes a small tree before each draft. Its tokens are candidates beside all others: how much its word counts
is learned from how its proposals of each probability fared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from reader_edge_runtime.errors import DraftError

MAX_TOKEN_ID = 2**31 - 2


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


class RequestSource(Protocol):
    """A source's state for one request."""

    def propose(self, max_nodes: int, max_depth: int) -> Proposal:
        """What may follow the text so far."""

    def observe(self, token_ids: Sequence[int]) -> None:
        """The text went on with these tokens."""


class Source(Protocol):
    """A further source. name: as it appears in the statistics."""

    name: str

    def begin(self, prompt_token_ids: Sequence[int]) -> RequestSource:
        """Start a request."""
