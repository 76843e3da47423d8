"""Drafts of a small model with the target's tokenizer: a chain of its likeliest tokens, and what might replace them."""

import math
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.payoff import DraftModelGain
from reader_edge_runtime.drafting.sources.draft_model import (
    NAME,
    NARROW,
    DraftChain,
    DraftModel,
    DraftSlot,
    NextTokens,
    passes,
)
from reader_edge_runtime.drafting.sources.source import Arrays, DraftSource
from reader_edge_runtime.errors import ReaderEdgeError

_PASSAGE = 128  # tokens
_END_SHARE = 0.5  # of what is read, the prompt's end
_K1, _B = 1.2, 0.75  # as Robertson and Zaragoza have them (The Probabilistic Relevance Framework, 2009)


def read_passages(
    token_ids: Sequence[int], num_tokens: int, passage: int = _PASSAGE, num_queried: int = _PASSAGE
) -> list[int]:
    """At most so many tokens of a prompt, in its order: its end, and before that the passages most like it, by BM25.

    For a draft model what is left out costs guesses and no token of an answer: the target reads all of the prompt.
    passage: tokens of each. num_queried: last tokens of the prompt that passages are compared with.
    """
    if len(token_ids) <= num_tokens:
        return list(token_ids)
    start = len(token_ids) - max(1, int(_END_SHARE * num_tokens))
    end = list(token_ids[start:])
    passages = [token_ids[place : min(place + passage, start)] for place in range(0, start, passage)]
    scores = _scores(passages, end[-num_queried:])
    chosen: list[int] = []
    room = num_tokens - len(end)
    for number in sorted(range(len(passages)), key=scores.__getitem__, reverse=True):
        if len(passages[number]) <= room:
            chosen.append(number)
            room -= len(passages[number])
    return [token_id for number in sorted(chosen) for token_id in passages[number]] + end


def _scores(passages: Sequence[Sequence[int]], query: Sequence[int]) -> list[float]:
    """BM25 of each passage, for the query."""
    counts = [Counter(passage) for passage in passages]
    mean_length = sum(map(len, passages)) / len(passages)
    num_with = Counter(token_id for each in counts for token_id in each)
    weights = {
        token_id: math.log(1 + (len(passages) - num_with[token_id] + 0.5) / (num_with[token_id] + 0.5))
        for token_id in set(query)
    }

    def score(passage: Sequence[int], count: Counter[int]) -> float:
        longer = _K1 * (1 - _B + _B * len(passage) / mean_length)
        return sum(weight * count[each] * (_K1 + 1) / (count[each] + longer) for each, weight in weights.items())

    return [score(passage, count) for passage, count in zip(passages, counts, strict=True)]


_MAX_DEPTH = 8


class DraftModelSource(DraftSource):
    """Lets a small model write on, for all requests of a step at once, where its guesses pay.

    Each request keeps a slot of the model's cache, and a step scores only what the target generated since. The model is
    silent where a text comes near the end of its context, or holds a token that it does not know; one that fails is
    not called again. vocab_size: of the target. context: tokens of a prompt that it reads at most, see `read_passages`;
    0 is all of it. Raises ProviderError for a model that does not run.
    """

    name = NAME
    is_costly = True

    def __init__(self, model: DraftModel, vocab_size: int, context: int = 0) -> None:
        self.gain = DraftModelGain(*model.measure(), NARROW)
        self._model: DraftModel | None = model
        self._vocab_size = min(vocab_size, model.vocab_size)
        self._context = context

    def begin(self, context: RequestContext) -> "DraftModelRequest":
        self.gain.renew()
        return DraftModelRequest(self.gain, context, self._context)

    def is_worth_asking(self, draft_request: DraftRequest, top_probability: float) -> bool:
        request = cast(DraftModelRequest, draft_request.request)
        if self._model is None or not request.fits(self._model):
            return False
        if not draft_request.token_s:
            return True
        gain_s = self.gain.gain_s(top_probability, draft_request.token_s)
        if gain_s < 0:
            return False
        num_missing = request.slot_of(self._model).num_missing(request.read_token_ids)
        return self.gain.pays_to_catch_up(num_missing, gain_s, request.num_answered, draft_request.max_depth)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | None]:
        requests = [cast(DraftModelRequest, draft_request.request) for draft_request in draft_requests]
        for request in requests:
            request.chain = None
        if self._model is None:
            return [None] * len(draft_requests)
        try:
            self._guess(self._model, requests, draft_requests)
        except ReaderEdgeError as error:
            warnings.warn(f"The draft model is not called again: {error}", stacklevel=2)
            self._model = None
            return [None] * len(draft_requests)
        return [None if request.chain is None else request.chain.tree for request in requests]

    def restore(self, arrays: Arrays) -> None:
        """Past texts are dropped; what the model is worth is of this machine, and does not hang on them."""
        if self._model is not None:
            self._model.forget()

    def _guess(
        self, model: DraftModel, requests: Sequence["DraftModelRequest"], draft_requests: Sequence[DraftRequest]
    ) -> None:
        """Chains for the requests whose texts the model has caught up with, each longer by one token a pass."""
        growing: dict[DraftSlot, tuple[DraftChain, DraftRequest]] = {}
        further: dict[DraftSlot, Sequence[int]] = {}
        for request, draft_request in zip(requests, draft_requests, strict=True):
            if missing := self._missing(model, request):
                slot = request.slot_of(model)
                request.chain = DraftChain(request.token_ids, self._vocab_size)
                growing[slot], further[slot] = (request.chain, draft_request), missing
        while further:
            scored = self._score(model, further)
            further = {}
            for slot, successors in scored.items():
                chain, draft_request = growing[slot]
                token_id = chain.grow(successors)
                if token_id is not None and self._goes_on(chain, draft_request):
                    further[slot] = [token_id]

    def _missing(self, model: DraftModel, request: "DraftModelRequest") -> Sequence[int]:
        """The tokens of a text that are still to score, at least its last; none where they are too many for one pass.

        Then the model reads some of them, and may be called again in the next step.
        """
        if not request.fits(model):
            return []
        slot, text = request.slot_of(model), request.read_token_ids
        num_missing = slot.num_missing(text)
        slot.cut()
        start = len(slot.token_ids)
        missing = text[start : start + model.prefill_chunk(start)]
        request.is_known = max(missing) < model.vocab_size
        if request.is_known and len(missing) < num_missing:
            self._score(model, {slot: missing})
        return missing if request.is_known and len(missing) == num_missing else []

    def _score(self, model: DraftModel, further: Mapping[DraftSlot, Sequence[int]]) -> dict[DraftSlot, NextTokens]:
        scored: dict[DraftSlot, NextTokens] = {}
        for slots in passes(further):
            began = time.perf_counter()
            scored |= model.score(slots, further)
            seconds = (time.perf_counter() - began) / len(slots)
            self.gain.learn_pass(seconds, max(len(further[slot]) for slot in slots))
        return scored

    def _goes_on(self, chain: DraftChain, draft_request: DraftRequest) -> bool:
        pays = self.gain.goes_on(chain.path, chain.depth, draft_request.token_s)
        return pays and chain.depth < min(_MAX_DEPTH, draft_request.max_depth, draft_request.max_nodes - 1)


class DraftModelRequest(RequestDrafter):
    """A text that a draft model writes on.

    most_read: tokens of the prompt that the model reads; 0 is all of them. is_known: whether all tokens seen so far are
    in the model's vocabulary. chain: what was guessed last, until it is known what came.
    """

    def __init__(self, gain: DraftModelGain, context: RequestContext, most_read: int = 0) -> None:
        super().__init__(context)
        self._most_read = most_read
        self._read: list[int] = []
        self._num_unread = 0  # tokens of the prompt
        self.is_known = True
        self.chain: DraftChain | None = None
        self._gain = gain
        self._slot: DraftSlot | None = None

    @property
    def read_token_ids(self) -> Sequence[int]:
        """What the model reads: the text, or passages of its prompt and all of the answer."""
        if not 0 < self._most_read < self.num_prompt_tokens:
            return self.token_ids
        if not self._read:
            self._read = read_passages(self.token_ids[: self.num_prompt_tokens], self._most_read)
            self._num_unread = self.num_prompt_tokens - len(self._read)
        self._read += self.token_ids[len(self._read) + self._num_unread :]
        return self._read

    @property
    def num_answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def fits(self, model: DraftModel) -> bool:
        """Whether the model can read the text and write on; rows are taken for the widest pass and longest chain."""
        return self.is_known and len(self.read_token_ids) + NARROW + _MAX_DEPTH <= model.max_context

    def slot_of(self, model: DraftModel) -> DraftSlot:
        """Its slot, taken when it is first needed."""
        if self._slot is None:
            self._slot = model.take(self, self.read_token_ids)
        return self._slot

    def observe(self, scored: ScoredTree | None) -> None:
        if self.chain is None or len(self.token_ids) == self.chain.position + 1:
            return
        came = self.token_ids[self.chain.position + 1 :]
        is_in_tree = scored is None or scored.tree.child(0, came[0]) >= 0  # else it brought nothing
        self._gain.learn_hit(is_in_tree and self.chain.is_hit(came[0]))
        for probability, is_right in self.chain.claims(came):
            self._gain.learn_claim(probability, is_right)
        self.chain = None

    def finish(self) -> None:
        self._gain.learn_answer(self.num_answered)
        if self._slot is not None:
            self._slot.release()
