"""The interface of further sources of drafts: a draft model, a speculator, declared tools, a user's own.

A source proposes a small tree for each request before each draft. How much its tokens count beside others is learned
from how its proposals of each probability fared. Context, history, successors and datastores are compiled in instead:
they are looked up at every node of a tree, and a call into Python takes longer than a draft.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter

Arrays = Mapping[str, npt.NDArray[Any]]


class DraftSource(ABC):
    """Proposes for all requests of a step at once; the time it takes counts as time of drafting.

    A child has to have a name, `begin` and `propose`; the rest is there.
    name: as it appears in the statistics, and in no other source.
    wants_hidden_states, wants_layer_states: whether the scores that its requests observe shall hold these states of the
    target.
    is_costly: whether it takes so long that others may make it needless: `is_worth_asking` decides then.
    wants_gain: whether a costly one learns what asking it brought, to know where it pays.
    """

    name: str
    wants_hidden_states: bool = False
    wants_layer_states: bool = False
    is_costly: bool = False
    wants_gain: bool = False

    @abstractmethod
    def begin(self, context: RequestContext) -> RequestDrafter | None:
        """Its state for one request; None where it has nothing to say of it, and then it is not called."""

    @abstractmethod
    def propose(self, draft_requests: Sequence[DraftRequest]) -> Sequence[DraftTree | None]:
        """What may follow each request's text, None for nothing; `draft_request.request` is what `begin` gave for it.

        A tree's root is the request's last token; a node's value how sure the source is that the text goes on to it. A
        token named again below its parent is the same node, as sure as the first naming. The tree may have more nodes
        than the draft: the likeliest get into it, under this source's name whatever `sources` says.
        Where it raises, it is called again for each request alone, and those for which it raises again end.
        """

    def is_worth_asking(self, draft_request: DraftRequest, top_probability: float) -> bool:
        """Whether to ask for a request; `draft_request.request` is what `begin` gave for it.

        top_probability: how sure the compiled sources are of the likeliest next token, and others that proposed before.
        """
        return True

    def learn_gain(self, request: RequestDrafter, num_gained: int, seconds: float) -> None:
        """Learn from a step for which it was called.

        request: what `begin` gave. num_gained: accepted tokens beyond those of a draft of as many nodes without it,
        maybe below 0. seconds: that asking and drafting again took.
        """
        return None

    def wait(self) -> None:
        """Return once all is there that it drafts from: for tools that measure or prove."""
        return None

    def state(self) -> Arrays:
        """What it has learned, as named arrays of int32, int64, float32, float64 or uint8; {} for nothing."""
        return {}

    def restore(self, arrays: Arrays) -> None:
        """Take up what `state` gave, maybe long ago; of {}, start over.

        The arrays come from a file: raises whatever it likes where they are not what it could have given.
        """
        return None
