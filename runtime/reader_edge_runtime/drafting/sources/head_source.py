"""Drafts of a trained head: two tokens ahead, from what the target thought last and the pending token."""

import time
import warnings
from collections.abc import Sequence
from typing import cast

import numpy as np

from reader_edge_runtime.draft_tree import ScoredTree
from reader_edge_runtime.drafting.drafter import DraftWish
from reader_edge_runtime.drafting.sources.head_file import Float32Array, HeadFile, HeadModel, Int32Array
from reader_edge_runtime.drafting.sources.source import NO_GUESS, Arrays, Proposal
from reader_edge_runtime.errors import ProviderError

_LEAST = 0.01  # probability below which a guess is left out: no pass has room for it
_FIRST_HITS = 0.4  # share of steps in which one of the first guesses is right, before any was seen
_MEMORY = 0.02  # weight of the newest value in a mean


class HeadSource:
    """A `CostlySource` that asks a head for all requests of a step at once.

    Guesses that are no numbers, or name no token, are left out; a head that fails is not asked again.
    """

    name = "head"
    wants_hidden_states = True

    def __init__(self, head: HeadFile, model: HeadModel, vocab_size: int) -> None:
        self._ids = head.ids
        self._model: HeadModel | None = model
        self._hits = _FIRST_HITS
        self._seconds = 0.0  # of a step, for one request
        self._numbers = np.full(vocab_size, len(head.ids), np.int64)
        self._numbers[head.ids] = np.arange(len(head.ids))

    def begin(self, token_ids: Sequence[int]) -> "HeadRequest":
        return HeadRequest(self, token_ids)

    def is_worth_asking(self, wish: DraftWish, promised: float) -> bool:
        # It can only add where the others fail, and adds a token where it then is right.
        is_paid = (1 - promised) * self._hits * wish.token_s >= self._seconds * (wish.token_s > 0)
        return self._model is not None and is_paid

    def learn(self, is_hit: bool) -> None:
        """Learn whether one of the first guesses was right."""
        self._hits += _MEMORY * (is_hit - self._hits)

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        requests = [cast(HeadRequest, wish.request) for wish in wishes]
        states = [request.state() for request in requests]
        known = [b for b, state in enumerate(states) if state is not None]
        proposals = [NO_GUESS] * len(wishes)
        if not known or self._model is None:
            return proposals
        began = time.perf_counter()
        pending = self._numbers[[requests[b].token_ids[-1] for b in known]]
        try:
            said = self._model.guess(np.stack([cast(Float32Array, states[b]) for b in known]), pending)
        except ProviderError as error:
            warnings.warn(f"{error} It is not asked again.", stacklevel=2)
            self._model = None
            return proposals
        for b, *guesses in zip(known, *said, strict=True):
            proposals[b] = requests[b].guessed = _proposal(self._ids, *guesses)
        seconds = (time.perf_counter() - began) / len(known)
        self._seconds += _MEMORY * (seconds - self._seconds) if self._seconds else seconds
        return proposals

    def state(self) -> Arrays:
        """It learns nothing."""
        return {}

    def restore(self, arrays: Arrays) -> None:
        """There is nothing to take up."""


class HeadRequest:
    """The hidden state that a request's pending token was chosen from.

    token_ids: the request's own list. guessed: what was proposed last, until it is known what came.
    """

    def __init__(self, source: HeadSource, token_ids: Sequence[int]) -> None:
        self.token_ids = token_ids
        self.guessed = NO_GUESS
        self._source = source
        self._state: Float32Array | None = None
        self._position = -1  # of the token that the state is of

    def observe(self, scored: ScoredTree | None) -> None:
        if scored is None or scored.hidden_states is None:
            return
        tree, position, node = scored.tree, scored.root, 0
        last = len(self.token_ids) - 2  # the token before the pending one
        while position < last and (child := tree.child(node, self.token_ids[position + 1])) >= 0:
            position, node = position + 1, child
        if node in scored.rows:
            self._state, self._position = scored.hidden_states[scored.rows.index(node)], position
        if self.guessed.token_ids:
            came = self.token_ids[scored.root + 1]
            first = zip(self.guessed.token_ids, self.guessed.parents, strict=True)
            self._source.learn(any(token_id == came for token_id, parent in first if parent < 0))
            self.guessed = NO_GUESS

    def state(self) -> Float32Array | None:
        """float32 (E,); None where the target was not heard on the token before the pending one."""
        return self._state if self._position == len(self.token_ids) - 2 else None

    def finish(self) -> None:
        """Nothing is kept for later requests."""


def _proposal(
    ids: Int32Array,
    probabilities: Float32Array,
    numbers: Int32Array,
    next_probabilities: Float32Array,
    next_numbers: Int32Array,
) -> Proposal:
    """The tree of a text's guesses."""
    token_ids: list[int] = []
    parents: list[int] = []
    shares: list[float] = []

    def add(parent: int, values: Float32Array, named: Int32Array) -> list[int]:
        """Nodes below a parent; the place of each guess among all nodes, -1 for one that was left out."""
        places = []
        for value, number in zip(values.tolist(), named.tolist(), strict=True):
            is_usable = _LEAST <= value <= 1 and 0 <= number < len(ids)
            places.append(len(token_ids) if is_usable else -1)
            if is_usable:
                token_ids.append(int(ids[number]))
                parents.append(parent)
                shares.append(value)
        return places

    places = add(-1, probabilities, numbers)
    for place, values, named in zip(places, next_probabilities, next_numbers, strict=False):
        if place >= 0:
            add(place, values, named)
    return Proposal(token_ids, parents, shares)
