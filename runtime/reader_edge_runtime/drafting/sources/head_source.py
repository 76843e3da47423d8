"""Drafts of a trained head: two tokens ahead, from what the target thought last and the pending token."""

import warnings
from collections.abc import Sequence
from typing import cast

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int32Array
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.cost_model import SourceGain
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.sources.head_file import HeadFile, HeadModel
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.errors import ProviderError

_LEAST = 0.01  # probability below which a guess is left out: no pass has room for it


class HeadSource(DraftSource):
    """Asks a head for all requests of a step at once, where its gain of late pays.

    Guesses that are no numbers, or name no token, are left out; a head that fails is not asked again.
    """

    name = "head"
    wants_hidden_states = is_costly = wants_gain = True

    def __init__(self, head: HeadFile, model: HeadModel, vocab_size: int) -> None:
        self._ids = head.ids
        self._model: HeadModel | None = model
        self.gain = SourceGain()
        self._numbers = np.full(vocab_size, len(head.ids), np.int64)
        self._numbers[head.ids] = np.arange(len(head.ids))

    def begin(self, context: RequestContext) -> "HeadRequest":
        return HeadRequest(context)

    def is_worth_asking(self, draft_request: DraftRequest, top_probability: float) -> bool:
        request = cast(HeadRequest, draft_request.request)
        request.top_probability = top_probability
        if self._model is None or request.state() is None:
            return False
        # A token that is saved saves what one takes with the drafts that there are.
        return self.gain.pays(top_probability, draft_request.token_s / request.tokens_a_step)

    def learn_gain(self, request: RequestDrafter, num_gained: int, seconds: float) -> None:
        self.gain.learn(cast(HeadRequest, request).top_probability, num_gained, seconds)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | None]:
        requests = [cast(HeadRequest, draft_request.request) for draft_request in draft_requests]
        states = [request.state() for request in requests]
        known = [b for b, state in enumerate(states) if state is not None]
        proposals: list[DraftTree | None] = [None] * len(draft_requests)
        if not known or self._model is None:
            return proposals
        pending = self._numbers[[requests[b].token_ids[-1] for b in known]]
        try:
            said = self._model.guess(np.stack([cast(Float32Array, states[b]) for b in known]), pending)
        except ProviderError as error:
            warnings.warn(f"{error} It is not asked again.", stacklevel=2)
            self._model = None
            return proposals
        for b, *guesses in zip(known, *said, strict=True):
            proposals[b] = _proposal(requests[b].token_ids[-1], self._ids, *guesses)
        return proposals


class HeadRequest(RequestDrafter):
    """The hidden state that a request's pending token was chosen from.

    top_probability: how sure the others were when it was last asked about.
    """

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self.top_probability = 0.0
        self._num_steps = 0
        self._state: Float32Array | None = None
        self._position = -1  # of the token that the state is of

    @property
    def tokens_a_step(self) -> float:
        """Of the answer so far, whose first token the prompt's pass said."""
        return max(1.0, (len(self.token_ids) - self.num_prompt_tokens) / (self._num_steps + 1))

    def observe(self, scored: ScoredTree | None) -> None:
        if scored is None or scored.hidden_states is None:
            return
        self._num_steps += scored.root >= self.num_prompt_tokens
        tree, position, node = scored.tree, scored.root, 0
        last = len(self.token_ids) - 2  # the token before the pending one
        while position < last and (child := tree.child(node, self.token_ids[position + 1])) >= 0:
            position, node = position + 1, child
        if node in scored.rows:
            self._state, self._position = scored.hidden_states[scored.rows.index(node)], position

    def state(self) -> Float32Array | None:
        """float32 (E,); None where the target was not heard on the token before the pending one."""
        return self._state if self._position == len(self.token_ids) - 2 else None


def _proposal(
    pending_id: int,
    ids: Int32Array,
    probabilities: Float32Array,
    numbers: Int32Array,
    next_probabilities: Float32Array,
    next_numbers: Int32Array,
) -> DraftTree:
    """The tree of a text's guesses."""
    tree = DraftTree.root(pending_id)

    def add(parent: int, shares: Float32Array, named: Int32Array) -> list[int]:
        """The node of each guess below a parent, 0 for one that was left out."""
        nodes = []
        for share, number in zip(shares.tolist(), named.tolist(), strict=True):
            is_usable = _LEAST <= share <= 1 and 0 <= number < len(ids)
            value = share * tree.values[parent]
            nodes.append(tree.add(int(ids[number]), parent, HeadSource.name, value) if is_usable else 0)
        return nodes

    for node, shares, named in zip(add(0, probabilities, numbers), next_probabilities, next_numbers, strict=False):
        if node:
            add(node, shares, named)
    return tree
