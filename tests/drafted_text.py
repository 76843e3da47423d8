"""A request that a drafter drafts for, without a decoder, and simple sources of drafts."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.source import Arrays, DraftSource
from reader_edge_runtime.errors import ReaderEdgeError


class DraftedText:
    """One request without a decoder."""

    def __init__(self, drafter: Drafter, prompt: Sequence[int]) -> None:
        self.token_ids = list(prompt)
        self.drafter = drafter
        self.request = drafter.begin(RequestContext(self.token_ids))

    def draft(self, max_nodes: int, max_depth: int) -> DraftTree:
        [tree] = self.drafter.draft([DraftRequest(self.request, max_nodes, max_depth)])
        if isinstance(tree, ReaderEdgeError):
            raise tree
        return tree

    def go_on(self, token_ids: Sequence[int], scored: ScoredTree | None = None) -> None:
        self.token_ids += token_ids
        self.request.observe(scored)

    def finish(self) -> None:
        self.request.finish()


Guess = tuple[Sequence[int], Sequence[int], Sequence[float]]  # tokens, parents (-1: the text), shares of the parent


def proposed(root: int, guess: Guess) -> DraftTree:
    """The tree below a text's last token, be it none that may be."""
    token_ids, parents, shares = guess
    values = [1.0]
    for parent, share in zip(parents, shares, strict=False):
        values.append(share * values[parent + 1] if -1 <= parent < len(values) - 1 else share)
    return DraftTree([root, *token_ids], [-1, *(parent + 1 for parent in parents)], [""] * len(values), values)


VOCAB_SIZE = 1000


class EchoRequest(RequestDrafter):
    """Keeps what it observes. is_faulty: then observing fails."""

    def __init__(self, context: RequestContext, is_faulty: bool) -> None:
        super().__init__(context)
        self.is_faulty = is_faulty
        self.observed: list[ScoredTree] = []

    def observe(self, scored: ScoredTree | None) -> None:
        if self.is_faulty:
            raise ZeroDivisionError("observed")
        if scored is not None:
            self.observed.append(scored)

    def finish(self) -> None:
        self.observed.clear()


class EchoSource(DraftSource):
    """Proposes 500 plus a text's first token, as sure as a test has it; texts that begin with `faulty` fail."""

    wants_hidden_states = True

    def __init__(self, faulty: int = -1, fault: str = "propose", name: str = "echo") -> None:
        self.name = name
        self.faulty, self.fault = faulty, fault
        self.probability = np.array([0.9])
        self.requests: list[EchoRequest] = []
        self.batch_sizes: list[int] = []

    def begin(self, context: RequestContext) -> EchoRequest | None:
        is_faulty = context.token_ids[0] == self.faulty
        if is_faulty and self.fault == "begin":
            raise ZeroDivisionError("began")
        self.requests.append(EchoRequest(context, is_faulty and self.fault == "observe"))
        return self.requests[-1]

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | None]:
        self.batch_sizes.append(len(draft_requests))
        return [self._proposal(draft_request.request.token_ids) for draft_request in draft_requests]

    def _proposal(self, token_ids: Sequence[int]) -> DraftTree:
        if token_ids[0] == self.faulty and self.fault == "propose":
            raise ZeroDivisionError("proposed")
        bad = token_ids[0] == self.faulty and self.fault == "proposal"
        tree = DraftTree.root(token_ids[-1])
        tree.add(-1 if bad else 500 + token_ids[0], 0, self.name, float(self.probability[0]))
        return tree

    def state(self) -> Arrays:
        return {"probability": self.probability}

    def restore(self, arrays: Arrays) -> None:
        self.probability = arrays["probability"].reshape(1) if arrays else np.array([0.9])


def make_drafter(source: EchoSource) -> RetrievalDrafter:
    return RetrievalDrafter(DraftConfig(max_nodes=16), [source]).wait()


def scored_root(text: DraftedText, top_ids: Sequence[int], hidden_states: Sequence[float] | None = None) -> ScoredTree:
    """What the target scored after a text's last token."""
    tree, ids = DraftTree.root(text.token_ids[-1]), np.array([top_ids])
    hidden = None if hidden_states is None else np.array([hidden_states], np.float32)
    logits = -np.arange(len(top_ids), dtype=np.float32)[None]
    return ScoredTree(tree, range(1), len(text.token_ids) - 1, ids, logits, VOCAB_SIZE, hidden)
