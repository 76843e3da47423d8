"""A text that a speculator drafts for: what the target said of it that is not read yet, and where its rows are."""

from typing import cast

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import ScoredTree
from reader_edge_runtime.drafting.drafter import RequestContext, RequestDrafter
from reader_edge_runtime.drafting.sources.speculator.heard_states import HeardStates
from reader_edge_runtime.drafting.sources.speculator.speculator_slots import SpeculatorSlot, SpeculatorSlots

_SPARE_ROWS = 64  # for nodes of trees


class SpeculatorRequest(RequestDrafter):
    """which: of the states that the target tells, those that are read. top_probability: how sure the others were when
    it was last asked about. temperature: that of the answer."""

    def __init__(self, context: RequestContext, which: list[int]) -> None:
        super().__init__(context)
        self.top_probability = 0.0
        self.temperature = context.temperature
        self._heard = HeardStates(which)
        self._slot: SpeculatorSlot | None = None
        self._num_steps = 0

    @property
    def tokens_a_step(self) -> float:
        """Of the answer so far, whose first token the prompt's pass said."""
        return max(1.0, (len(self.token_ids) - self.num_prompt_tokens) / (self._num_steps + 1))

    def fits(self, max_context: int) -> bool:
        """Whether all is known to draft for it."""
        num_tokens = len(self.token_ids)
        is_heard = self._heard.end == num_tokens - 1 > self._heard.start
        return is_heard and num_tokens + _SPARE_ROWS <= max_context

    def num_missing(self, slots: SpeculatorSlots) -> int:
        """Tokens to catch up with."""
        return len(self.token_ids) - self._first_missing(self._slot_of(slots))

    def begin_pass(self, slots: SpeculatorSlots) -> SpeculatorSlot:
        """Its slot, with rows of tokens before the first missing one alone."""
        slot = self._slot_of(slots)
        slot.keep(self.token_ids, self._first_missing(slot))
        slots.fit(slot)
        return slot

    def num_rows(self, slot: SpeculatorSlot) -> int:
        """Of its slot, with all of its text and the nodes of its next tree."""
        return len(self.token_ids) - slot.start + _SPARE_ROWS

    def chunk(self, slot: SpeculatorSlot, size: int) -> tuple[list[int], Float32Array]:
        """The next tokens to catch up with, and states of the token before each."""
        first = len(slot.token_ids)
        tokens = list(self.token_ids[first : first + size])
        return tokens, self._heard.between(first - 1, first - 1 + len(tokens))

    def went_on(self, slot: SpeculatorSlot, num_tokens: int) -> bool:
        """Note that so many tokens have rows now; whether more are missing."""
        first = len(slot.token_ids)
        slot.token_ids += self.token_ids[first : first + num_tokens]
        self._heard.forget_before(len(slot.token_ids) - 1)
        return len(slot.token_ids) < len(self.token_ids)

    def observe(self, scored: ScoredTree | None) -> None:
        if scored is not None and scored.layer_states is not None:
            self._num_steps += scored.root >= self.num_prompt_tokens
            self._heard.hear(scored, cast(list[int], self.token_ids))

    def finish(self) -> None:
        if self._slot is not None:
            self._slot.release()

    def _slot_of(self, slots: SpeculatorSlots) -> SpeculatorSlot:
        if self._slot is None:
            self._slot = slots.take(self, self.token_ids)
        return self._slot

    def _first_missing(self, slot: SpeculatorSlot) -> int:
        """Position of the first token to score: behind those with rows, unless states between are lost."""
        return max(slot.next_position(self.token_ids), self._heard.start + 1)
