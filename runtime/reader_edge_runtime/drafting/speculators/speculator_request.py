"""State of one request that a speculator drafts for: target states that it has not read yet, and its KV slot."""

from typing import cast

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import ScoredTree
from reader_edge_runtime.drafting.drafter import RequestContext, RequestDrafter
from reader_edge_runtime.drafting.speculators.speculated_tree import NAME
from reader_edge_runtime.drafting.speculators.speculator import SpeculatorSlot, SpeculatorSlots
from reader_edge_runtime.drafting.speculators.speculator_cost import BlockPlaces

MOST_UNREAD = 1024  # tokens whose states are kept: a speculator that was silent for longer reads the newest
_SPARE_ROWS = 64  # for nodes of trees


class SpeculatorRequest(RequestDrafter):
    """which: of the states that the target reports, those that are read. attends: whether the speculator has a KV
    cache. places: what is learned of those of blocks. top_probability: how sure the others were when it was last
    considered. temperature: that of the answer. num_places: places of the block that its next tokens come behind; 0 for
    none.
    """

    def __init__(self, context: RequestContext, which: list[int], attends: bool, places: BlockPlaces) -> None:
        super().__init__(context)
        self._attends, self._places, self.num_places = attends, places, 0
        self.top_probability = 0.0
        self.temperature = context.temperature
        self._unread = UnreadStates(which)
        self._slot: SpeculatorSlot | None = None
        self._num_steps = 0

    @property
    def tokens_a_step(self) -> float:
        """Of the answer so far, whose first token came with the prompt's pass."""
        return max(1.0, (len(self.token_ids) - self.num_prompt_tokens) / (self._num_steps + 1))

    def fits(self, max_context: int) -> bool:
        """Whether all is known to draft for it."""
        num_tokens = len(self.token_ids)
        is_known = self._unread.end == num_tokens - 1 > self._unread.start
        return is_known and num_tokens + _SPARE_ROWS <= max_context

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
        return tokens, self._unread.between(first - 1, first - 1 + len(tokens))

    def is_last(self, slot: SpeculatorSlot, num_tokens: int) -> bool:
        """Whether none is missing behind the next so many."""
        return len(slot.token_ids) + num_tokens == len(self.token_ids)

    def went_on(self, slot: SpeculatorSlot, num_tokens: int) -> bool:
        """Note that so many tokens have rows now; whether more are missing."""
        first = len(slot.token_ids)
        slot.token_ids += self.token_ids[first : first + num_tokens]
        self._unread.forget_before(len(slot.token_ids) - 1)
        return len(slot.token_ids) < len(self.token_ids)

    def observe(self, scored: ScoredTree | None) -> None:
        if scored is not None and scored.layer_states is not None:
            self._num_steps += scored.root >= self.num_prompt_tokens
            path = self._unread.add(scored, cast(list[int], self.token_ids))
            if self.num_places:
                self._places.learn(self.num_places, [scored.tree.sources[node] == NAME for node in path[1:]])
                self.num_places = 0

    def finish(self) -> None:
        if self._slot is not None:
            self._slot.release()

    def _slot_of(self, slots: SpeculatorSlots) -> SpeculatorSlot:
        if self._slot is None:
            self._slot = slots.take(self, self.token_ids)
        return self._slot

    def _first_missing(self, slot: SpeculatorSlot) -> int:
        """Position of the first token to score: behind those with rows, unless states between are lost.

        The last one where no layer attends: there are no rows of those before it.
        """
        newest = 0 if self._attends else len(self.token_ids) - 1
        return max(slot.next_position(self.token_ids), self._unread.start + 1, newest)


class UnreadStates:
    """States of a run of a text's tokens. which: of the states that the target reports, those that are kept.

    start: position of the first token whose states are known. end: behind the last.
    """

    def __init__(self, which: list[int]) -> None:
        self._which = which
        self._parts: list[Float32Array] = []
        self.start = self.end = 0

    def add(self, scored: ScoredTree, token_ids: list[int]) -> list[int]:
        """Take the states of the nodes of a tree that became the text, whose last token no pass has scored yet. Returns
        these nodes.

        scored: with states.
        """
        assert scored.layer_states is not None
        tree, path, node = scored.tree, [0], 0
        for token_id in token_ids[scored.root + 1 : -1]:
            node = tree.child(node, token_id)
            if node < 0:
                break
            path.append(node)
        if scored.root != self.end:
            self._parts, self.start = [], scored.root
        states = scored.layer_states[path][:, self._which]
        self._parts.append(states.reshape(len(path), -1))
        self.end = scored.root + len(path)
        while self._parts and self.end - self.start - len(self._parts[0]) >= MOST_UNREAD:
            self.start += len(self._parts.pop(0))
        return path

    def between(self, start: int, end: int) -> Float32Array:
        """float32 (end - start, F), of tokens that are known."""
        states = np.concatenate(self._parts)
        return states[start - self.start : end - self.start]

    def forget_before(self, position: int) -> None:
        """Let go of states that were read."""
        while self._parts and self.start + len(self._parts[0]) <= position:
            self.start += len(self._parts.pop(0))
