"""A small model that drafts: a target with a KV cache of its own, and which text each slot of it holds."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import RequestDrafter
from reader_edge_runtime.drafting.sources.text_slot import TextSlot, best_slot, side_by_side
from reader_edge_runtime.target import Pass, Target

NARROW = 8  # tokens of a pass that take about as long as one

_FIRST_CAPACITY = 256  # rows of the cache to begin with
_MEASURED_CHUNK = 16  # tokens of the pass that tells what catching up takes


class NextTokens(NamedTuple):
    """What a draft model expects after a text: int64 and float32 (K,), likeliest first, as its graph gives them."""

    token_ids: Int64Array
    probabilities: Float32Array


class DraftSlot(TextSlot):
    """A slot of the draft model's cache, a row for each of its tokens."""

    def num_missing(self, token_ids: Sequence[int]) -> int:
        """How many tokens of the owner's text have to be scored."""
        return len(token_ids) - self.num_known(token_ids)

    def cut(self) -> None:
        """Let go of guesses that did not come true."""
        del self.token_ids[self._num_true :]


class DraftModel:
    """Raises ProviderError for a target that does not run. max_slots: texts that are drafted for together."""

    def __init__(self, target: Target, max_slots: int) -> None:
        self.vocab_size = target.manifest.vocab_size
        self.max_context = target.manifest.max_context
        self._target = target
        self._cache = target.new_cache(1, _FIRST_CAPACITY)
        self._max_slots = max_slots
        self._slots: list[DraftSlot] = []

    def prefill_chunk(self, past: int) -> int:
        """How many tokens to catch up with at once after `past` others."""
        return self._target.prefill_chunk(past)

    def measure(self) -> tuple[float, float]:
        """Seconds of a pass of one token, and of each further one in a wide pass."""
        num_tokens = min(_MEASURED_CHUNK, self.max_context)
        one_s, wide_s = self._pass_s(1), self._pass_s(num_tokens)
        return one_s, max(0.0, wide_s - one_s) / max(num_tokens - 1, 1)

    def take(self, owner: RequestDrafter, token_ids: Sequence[int]) -> DraftSlot:
        """A slot for a text: of the free ones, the one that holds most of it."""
        slot = best_slot(self._slots, lambda each: each.num_held(owner, token_ids))
        if slot is None:
            slot = DraftSlot(len(self._slots))
            self._slots.append(slot)
        slot.own(owner)
        return slot

    def score(
        self, slots: Sequence[DraftSlot], further: Mapping[DraftSlot, Sequence[int]]
    ) -> dict[DraftSlot, NextTokens]:
        """Write rows of further tokens of some slots' texts, and tell what is expected after the last of each.

        slots: of one of the `passes`. Raises ProviderError, and ConfigError where memory is short.
        """
        cache, end = self._cache, slots[-1].number + 1
        if end > cache.num_slots:
            cache.reserve_addresses(self._max_slots)
            cache.reserve(end, cache.capacity)
        for slot in slots:  # rows that were cut, or that an interrupt left behind, are none of the text
            cache.cut(slot.number, len(slot.token_ids))
        trees = [DraftTree.chain(list(further[slot])) for slot in slots]
        rows = [range(len(tree) - 1, len(tree)) for tree in trees]
        result = self._target.forward(cache, Pass(slots[0].number, trees, rows, wants_log_sum_exp=True))
        scored = {}
        for b, (slot, tree) in enumerate(zip(slots, trees, strict=True)):
            cache.commit(slot.number, range(len(tree)))
            slot.token_ids += tree.token_ids
            scored[slot] = NextTokens(result.top_ids[b, 0], result.top_probabilities(b, 0))
        return scored

    def forget(self) -> None:
        """Drop all texts; those still drafted for are scored again."""
        for slot in self._slots:
            slot.clear()
        for number in range(self._cache.num_slots):
            self._cache.cut(number, 0)
            self._cache.trim(number)

    def _pass_s(self, num_tokens: int) -> float:
        """Seconds of a pass over so many tokens, its second time."""
        seconds = 0.0
        for _ in range(2):
            began = time.perf_counter()
            slot = DraftSlot(0)
            self.score([slot], {slot: [0] * num_tokens})
            seconds = time.perf_counter() - began
        return seconds


def passes(further: Mapping[DraftSlot, Sequence[int]]) -> list[list[DraftSlot]]:
    """Which slots are scored together: those side by side with few tokens. A pass has as many for each of its slots."""
    return side_by_side(further, lambda slot: len(further[slot]) > NARROW)


NAME = "draft model"
_LEAST = 0.01  # probability of a path below which it is left out: no pass has room for it
_MOST_SIBLINGS = 8


class DraftChain:
    """Grows by one token, and what might stand in its place, with each pass of the draft model.

    position: of the token in the request's text that it follows. tree: of its tokens and those beside them, below that
    token. path: the probability that the model gives to its tokens together. vocab_size: ids below it are tokens, of
    draft model and target alike.
    """

    def __init__(self, text: Sequence[int], vocab_size: int) -> None:
        self.position = len(text) - 1
        self.tree = DraftTree.root(text[-1])
        self.path = 1.0
        self._vocab_size = vocab_size
        self._nodes: list[int] = []  # of the chain
        self._probabilities: list[float] = []  # of each token of the chain behind the one before

    @property
    def depth(self) -> int:
        """Tokens of the chain."""
        return len(self._nodes)

    @property
    def last_probability(self) -> float:
        """What the model gives to the last token of a chain that has one, behind the one before."""
        return self._probabilities[-1]

    def grow(self, following: NextTokens) -> int | None:
        """Take the next tokens; returns the likeliest. None where that is none, or too unlikely: the chain ends.

        What is no probability, or no token's id, is left out with all behind it: the likeliest come first.
        """
        tree, parent, first = self.tree, self._nodes[-1] if self._nodes else 0, len(self.tree)
        probabilities = following.probabilities.tolist()
        for token_id, probability in zip(following.token_ids.tolist(), probabilities, strict=True):
            path = self.path * probability
            is_usable = 0 <= token_id < self._vocab_size and probability <= 1 and path >= _LEAST
            if not is_usable or len(tree) == first + _MOST_SIBLINGS:
                break
            tree.add(token_id, parent, NAME, path)
        if len(tree) == first:
            return None
        self._nodes.append(first)
        self._probabilities.append(probabilities[0])
        self.path = tree.values[first]
        return tree.token_ids[first]

    def is_hit(self, token_id: int) -> bool:
        """Whether the token that came was among the first guesses."""
        return self.tree.child(0, token_id) >= 0

    def claims(self, came: Sequence[int]) -> Iterator[tuple[float, bool]]:
        """How sure the model was of each token of the chain, and whether it came, up to the first that did not."""
        for node, probability, token_id in zip(self._nodes, self._probabilities, came, strict=False):
            is_right = self.tree.token_ids[node] == token_id
            yield probability, is_right
            if not is_right:
                return
