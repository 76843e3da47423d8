"""Drafts of a trained speculator, in one tree with all else: it goes on behind whatever is likeliest to be reached.

A pass over what the target has generated since tells what may follow the text's last token. The drafter then shows what
it would draft with that, and the likeliest nodes at which that draft ends, named by the speculator or retrieved, are
scored in one further pass, and so on for as long as a pass promises to save more time than it takes. So the
speculator's probabilities judge what was retrieved, and what is retrieved goes on behind what it names (READER, arXiv
2508.09072; longest prefixes merge as in RASD, arXiv 2503.03434; a tree grows by likelihood as in EAGLE-2, arXiv
2406.16858).
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.payoff import SourceGain
from reader_edge_runtime.drafting.sources.source import Arrays, DraftSource
from reader_edge_runtime.drafting.sources.text_slot import side_by_side
from reader_edge_runtime.drafting.speculators.speculated_tree import NAME, FrontierNode, SpeculatedTree
from reader_edge_runtime.drafting.speculators.speculator import (
    Speculator,
    SpeculatorResult,
    SpeculatorSlot,
    SpeculatorSlots,
    restore_slots,
    saved_slots,
)
from reader_edge_runtime.drafting.speculators.speculator_cost import (
    USUALLY_ADDED,
    USUALLY_ADDED_BY_BLOCKS,
    BlockPlaces,
    DraftProgress,
    SpeculatorTimes,
    TreeGrowth,
    pays_off,
)
from reader_edge_runtime.drafting.speculators.speculator_request import SpeculatorRequest
from reader_edge_runtime.errors import DraftError, ReaderEdgeError

_CHUNK = 128  # tokens of a text that are caught up with in one pass
# Tokens that asking adds to a step, by how sure the others are (`payoff.py`), for one that is always right.
_FIRST_GAINS = (1.0, 0.9, 0.6, 0.15)
_USUALLY_RIGHT = 0.4  # where the export has not found out
_NARROW = 8  # tokens that are caught up with in any case
_INVESTED = 0.25  # share of what the rest of an answer may gain that catching up with its text may take


class GrowingTree(NamedTuple):
    """A tree that grows, the request it is for, and how far it has come."""

    tree: SpeculatedTree
    draft_request: DraftRequest
    progress: DraftProgress


class SpeculatorSource(DraftSource):
    """Asks a speculator for all requests of a step at once, where its gain of late pays.

    state_ids: those of the target that it tells (`Manifest.state_ids`). agreement: how often the speculator's best
    token was found to be the target's; None where nobody looked. A speculator that fails is not called again. Raises
    ProviderError for one that does not run.
    """

    name = NAME
    wants_layer_states = is_costly = wants_gain = True

    def __init__(
        self,
        speculator: Speculator,
        state_ids: Sequence[int],
        vocab_size: int,
        max_slots: int,
        agreement: float | None = None,
    ) -> None:
        self._speculator: Speculator | None = speculator
        self._which = [state_ids.index(number) for number in speculator.part.state_ids]
        self._vocab_size = vocab_size
        self._attends = speculator.part.num_layers > 0
        self._block = speculator.part.block
        self._num_spare = self._block.size if self._block is not None else 0  # rows behind those of tokens
        self._borrows = speculator.part.lent is not None
        self.times = SpeculatorTimes.measure(speculator)
        self.places = BlockPlaces(self._block.max_drafts if self._block is not None else 1, self.times.place_s)
        self.slots = SpeculatorSlots(speculator, max_slots)
        is_right = _USUALLY_RIGHT if agreement is None else min(max(agreement, 0.0), 1.0)
        self.gain = SourceGain([is_right * gain for gain in _FIRST_GAINS])
        self.gain.seconds = self.times.asking_s
        self.growth = TreeGrowth()

    def pays_off(self, pass_s: float) -> bool:
        """Whether what it usually brings can make up for what asking takes. pass_s: see `needed_tokens`."""
        return pays_off(self.gain.seconds, pass_s, USUALLY_ADDED if self._block is None else USUALLY_ADDED_BY_BLOCKS)

    def begin(self, context: RequestContext) -> SpeculatorRequest:
        return SpeculatorRequest(context, self._which, self._attends, self.places)

    def is_worth_asking(self, draft_request: DraftRequest, top_probability: float) -> bool:
        request = cast(SpeculatorRequest, draft_request.request)
        request.top_probability = top_probability
        if self._speculator is None or not request.fits(self._speculator.max_context):
            return False
        if self._borrows and draft_request.rows is None:
            return False
        token_s = draft_request.token_s / request.tokens_a_step
        if not self.gain.pays(top_probability, token_s):
            return False
        catch_up_s = self.times.seconds(request.num_missing(self.slots)) - self.times.seconds(1)
        coming_s = self.gain.saved_s(token_s) * draft_request.max_depth / request.tokens_a_step
        return not token_s or catch_up_s <= self.times.seconds(_NARROW) + _INVESTED * coming_s

    def learn_gain(self, request: RequestDrafter, num_gained: int, seconds: float) -> None:
        self.gain.learn(cast(SpeculatorRequest, request).top_probability, num_gained, seconds)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | None]:
        if self._speculator is None:
            return [None] * len(draft_requests)
        try:
            trees = self._caught_up(self._speculator, draft_requests)
            if self._block is None:
                self._grow(self._speculator, trees)
        except ReaderEdgeError as error:
            warnings.warn(f"The speculator is not called again: {error}", stacklevel=2)
            self._speculator = None
            return [None] * len(draft_requests)
        by_request = {id(growing.draft_request): growing.tree.tree for growing in trees.values()}
        return [by_request.get(id(draft_request)) for draft_request in draft_requests]

    def state(self) -> Arrays:
        return saved_slots(self.slots) if self._speculator is not None and self._attends else {}

    def restore(self, arrays: Arrays) -> None:
        """Take up the texts' rows; what the speculator is worth is of this machine, and does not hang on them.

        Raises DraftError for what `state` could not have given.
        """
        if self._speculator is None or not self._attends:
            return
        try:
            restore_slots(self.slots, arrays, self._vocab_size, self._speculator.max_context)
        except (KeyError, ValueError) as error:
            raise DraftError(f"What the speculator has read is not sound ({error}): start over.") from None

    def _caught_up(
        self, speculator: Speculator, draft_requests: Sequence[DraftRequest]
    ) -> dict[SpeculatorSlot, GrowingTree]:
        """Trees of one scored node, the last of each text, once all of the text before it has rows."""
        growing: dict[SpeculatorSlot, GrowingTree] = {}
        further: dict[SpeculatorSlot, SpeculatorRequest] = {}
        for draft_request in draft_requests:
            request = cast(SpeculatorRequest, draft_request.request)
            if not request.fits(speculator.max_context):
                continue
            slot = request.begin_pass(self.slots)
            tree = SpeculatedTree(request.token_ids[-1], self._vocab_size, request.temperature)
            growing[slot], further[slot] = GrowingTree(tree, draft_request, DraftProgress()), request
        if further:  # now: a cache that grows keeps no rows of trees
            num_rows = max(request.num_rows(slot) for slot, request in further.items())
            self.slots.cache.reserve(self.slots.cache.num_slots, num_rows)
        while further:
            further = self._catch_up(speculator, further, growing)
        return growing

    def _catch_up(
        self,
        speculator: Speculator,
        requests: Mapping[SpeculatorSlot, SpeculatorRequest],
        growing: Mapping[SpeculatorSlot, GrowingTree],
    ) -> dict[SpeculatorSlot, SpeculatorRequest]:
        """A chunk of each text. Returns those of which there is more."""
        left: dict[SpeculatorSlot, SpeculatorRequest] = {}
        cache = self.slots.cache
        for slots in self._groups({slot: growing[slot] for slot in requests}):
            # A pass is as wide for each of its texts, and one of them may be near the context's end.
            room = speculator.max_context - max(cache.lengths[slot.number] for slot in slots) - self._num_spare
            chunks = [requests[slot].chunk(slot, min(_CHUNK, room)) for slot in slots]
            wanted = (
                self._num_wanted(growing[slot].draft_request)
                for slot, (tokens, _) in zip(slots, chunks, strict=True)
                if requests[slot].is_last(slot, len(tokens))
            )
            num_drafts = max(wanted, default=1)
            began = time.perf_counter()
            further, states = zip(*chunks, strict=True)
            result = speculator.catch_up(*self._rows(slots[0], growing), further, states, num_drafts)
            if num_drafts == 1:
                self._learn_time(max(len(tokens) for tokens, _ in chunks), len(slots), began)
            for b, (slot, (tokens, _)) in enumerate(zip(slots, chunks, strict=True)):
                cache.commit(slot.number, range(len(tokens)))
                if requests[slot].went_on(slot, len(tokens)):
                    left[slot] = requests[slot]
                elif self._block is not None:
                    requests[slot].num_places = num_drafts
                    pairs = result.pair_logits[b] if result.pair_logits is not None else None
                    growing[slot].tree.add_block(result.top_ids[b], result.probabilities[b], pairs)
                else:
                    state = result.next_states[b, len(tokens) - 1]
                    growing[slot].tree.add_root(result.top_ids[b, 0], result.probabilities[b, 0], state)
        return left

    def _num_wanted(self, draft_request: DraftRequest) -> int:
        """Places of a block that a request has room for, and that pay."""
        _, max_nodes, max_depth, token_s, *_ = draft_request
        tokens_a_step = cast(SpeculatorRequest, draft_request.request).tokens_a_step
        return min(max_depth, max_nodes - 1, self.places.worth(token_s / tokens_a_step))

    def _grow(self, speculator: Speculator, trees: dict[SpeculatorSlot, GrowingTree]) -> None:
        """Passes over the likeliest ends of all drafts, for as long as they pay."""
        growing = dict(trees)
        while True:
            chosen = {slot: self._chosen(each) for slot, each in growing.items()}
            growing = {slot: each for slot, each in growing.items() if chosen[slot]}
            if not growing:
                return
            for slots in self._groups(growing):
                steps = [growing[slot].tree.step(chosen[slot]) for slot in slots]
                began = time.perf_counter()
                result = speculator.step(*self._rows(slots[0], growing), steps)
                self._learn_time(max(len(chosen[slot]) for slot in slots), len(slots), began)
                for b, slot in enumerate(slots):
                    _add(growing[slot].tree, result, b, len(chosen[slot]))

    def _groups(self, growing: Mapping[SpeculatorSlot, GrowingTree]) -> list[list[SpeculatorSlot]]:
        """As passes take them: side by side in the cache that they read."""
        return side_by_side(growing, place=lambda slot: self._rows(slot, growing)[1])

    def _rows(self, slot: SpeculatorSlot, growing: Mapping[SpeculatorSlot, GrowingTree]) -> tuple[Cache, int]:
        """The cache that passes over a text read, and its slot there: the target's where that lends its rows."""
        rows = growing[slot].draft_request.rows
        return rows if self._borrows and rows is not None else (self.slots.cache, slot.number)

    def _chosen(self, growing: GrowingTree) -> list[FrontierNode]:
        """The nodes of a draft that the next pass scores; none where that does not pay."""
        tree, draft_request, progress = growing
        if draft_request.preview is None:
            return []
        draft = draft_request.preview(tree.tree)
        self.growth.learn(progress, draft)
        candidates = tree.candidates(draft, draft_request.max_depth)
        return self.growth.chosen(progress, candidates, draft_request.token_s, self.times)

    def _learn_time(self, num_nodes: int, num_texts: int, began: float) -> None:
        self.times.learn(num_nodes, (time.perf_counter() - began) / num_texts)


def _add(tree: SpeculatedTree, result: SpeculatorResult, b: int, num_nodes: int) -> None:
    tree.add(result.top_ids[b, :num_nodes], result.probabilities[b, :num_nodes], result.next_states[b, :num_nodes])
