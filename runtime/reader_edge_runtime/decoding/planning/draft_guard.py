"""The guard of one request's drafting: how far its drafts are believed, and when it rests."""

from reader_edge_runtime.decoding.acceptance.exact import Verification
from reader_edge_runtime.draft_tree import DraftTree

_PRIOR_TOKENS = 1.0  # predicted tokens that a first belief in the drafter weighs
_FIRST_DOUBT = 0.5  # predicted tokens that, before any draft, count as refused
_MEMORY = 0.95  # weight that each draft leaves to those before it
_MAX_VAIN = 6  # drafts in vain on end
_CARRIED = 0.5  # weight that a request's drafts have in the next one


class DraftGuard:
    """Learns how many of the tokens that drafts predicted came, and lets a request rest where drafts are in vain.

    A draft teaches whether it was verified or not: the token that comes tells of the nodes at its root.
    """

    def __init__(self) -> None:
        self._predicted = _FIRST_DOUBT
        self._accepted = 0.0
        self._num_vain = 0
        self._rest_left = 0

    @property
    def trust(self) -> float:
        """By what a draft's values are multiplied: accepted over predicted tokens, the newest most; at most 1."""
        return min(1.0, (self._accepted + _PRIOR_TOKENS) / (self._predicted + _PRIOR_TOKENS))

    def for_next(self) -> "DraftGuard":
        """The guard that a next request starts with: it need not learn the same again."""
        other = DraftGuard()
        other._predicted, other._accepted = _CARRIED * self._predicted, _CARRIED * self._accepted
        other._num_vain, other._rest_left = self._num_vain, self._rest_left
        return other

    @property
    def is_in_vain(self) -> bool:
        """Whether the last drafts were all in vain: not even their evidence is worth collecting."""
        return self._num_vain > _MAX_VAIN

    def takes_rest(self) -> bool:
        """Whether the request decodes plainly now; called once a step that could draft."""
        is_resting = self._rest_left > 0
        self._rest_left -= is_resting
        return is_resting

    def rest(self, longest: int) -> None:
        """A draft was in vain: rest, each time twice as long, but for `longest` steps at most."""
        self._rest_left = min(1 << self._num_vain, longest)
        self._num_vain = min(self._num_vain + 1, 30)

    def go_on(self) -> None:
        """A draft was worth its time."""
        self._num_vain = 0

    def learn(self, draft: DraftTree, tree: DraftTree, verification: Verification) -> None:
        """How a draft fared, of which the part `tree` was verified."""
        if len(tree) > 1:
            predicted, accepted = sum(tree.values) - 1, verification.num_accepted_tokens
        else:
            predicted = sum(v for v, parent in zip(draft.values, draft.parents, strict=True) if parent == 0)
            accepted = int(draft.child(0, verification.token_ids[0]) >= 0)
        self._predicted = _MEMORY * self._predicted + predicted
        self._accepted = _MEMORY * self._accepted + accepted
