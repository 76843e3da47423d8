"""Trust: how far one request's drafts are believed, and when the request rests from drafting."""

from dataclasses import dataclass

from reader_edge_runtime.decoding.acceptance import Verification
from reader_edge_runtime.decoding.choosing.constraint import FORCED_SOURCE
from reader_edge_runtime.draft_tree import DraftTree

_PRIOR_TOKENS = 1.0  # weight, in predicted tokens, of the first belief in a drafter
_FIRST_DOUBT = 0.5  # predicted tokens that count as refused before any draft was made
_MEMORY = 0.95  # weight that each draft leaves to those before it
_FIRST_PROMISE = 2.0  # of a drafter that is not known yet
_PROMISE_MEMORY = 0.85  # weight that each draft's promise leaves to those before it
_MAX_VAIN = 6  # rests in a row
_INHERITED = 0.5  # weight that a request's drafts have for the next request
_MOST_DOUBLINGS = 30


@dataclass(slots=True)
class Trust:
    """What a request's drafts have taught.

    predicted, accepted: draft tokens that were expected to be accepted, and those that were, recent drafts most.
    promise: the time that drafts promised to save, as a multiple of what drafting takes, recent drafts most.
    num_vain: rests in a row. rest_left: steps that are still decoded plainly.
    """

    predicted: float = _FIRST_DOUBT
    accepted: float = 0.0
    promise: float = _FIRST_PROMISE
    num_vain: int = 0
    rest_left: int = 0

    @property
    def factor(self) -> float:
        """What a draft's values are multiplied by: accepted over predicted tokens, at most 1."""
        return min(1.0, (self.accepted + _PRIOR_TOKENS) / (self.predicted + _PRIOR_TOKENS))

    @property
    def is_in_vain(self) -> bool:
        """Whether drafts have long promised too little, so that not even their evidence is worth collecting."""
        return self.num_vain > _MAX_VAIN

    def for_next(self) -> "Trust":
        """What the next request starts from: half the belief, and the same rest."""
        predicted, accepted = _INHERITED * self.predicted, _INHERITED * self.accepted
        return Trust(predicted, accepted, self.promise, self.num_vain, self.rest_left)

    def weigh(self, promise: float, longest: int) -> None:
        """Rest where drafts of late promised less than they took, each time twice as long, up to `longest` steps."""
        self.promise = _PROMISE_MEMORY * self.promise + (1 - _PROMISE_MEMORY) * promise
        if self.promise >= 1:
            self.num_vain = 0
            return
        self.rest_left = min(1 << self.num_vain, longest)
        self.num_vain = min(self.num_vain + 1, _MOST_DOUBLINGS)

    def learn(self, draft: DraftTree, tree: DraftTree, verification: Verification, source: str | None = None) -> None:
        """Learn how a draft fared of which `tree` was verified.

        A draft that was not verified teaches too: the next token shows whether one of the root's children was right.
        source: of the nodes this is about; None for all but those that a constraint forced.
        """

        def counts(name: str) -> bool:
            return name == source if source is not None else name != FORCED_SOURCE

        if len(tree) > 1:
            predicted = sum(v for v, name in zip(tree.values[1:], tree.sources[1:], strict=True) if counts(name))
            accepted = sum(counts(tree.sources[node]) for node in verification.path[1:])
        else:
            children = [node for node in range(1, len(draft)) if draft.parents[node] == 0]
            predicted = sum(draft.values[node] for node in children if counts(draft.sources[node]))
            child = draft.child(0, verification.token_ids[0])
            accepted = int(child >= 0 and counts(draft.sources[child]))
        self.predicted = _MEMORY * self.predicted + predicted
        self.accepted = _MEMORY * self.accepted + accepted
