"""The interface of a loaded speculator, and the slots of its KV cache."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from reader_edge_runtime.arrays import Array, Float32Array, Int64Array
from reader_edge_runtime.cache import Cache, SlotContents
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import RequestDrafter
from reader_edge_runtime.drafting.sources.text_slot import TextSlot, best_slot
from reader_edge_runtime.package.package_parts import SpeculatorPart


class SpeculatorResult(NamedTuple):
    """What a speculator says of nodes that it scored: B trees, R of the nodes each, padded.

    top_ids, probabilities: int64 and float32 (B, R, K), its likeliest successors, likeliest first; of a block R places,
    one behind the other.
    next_states: float32 (B, N, E) of all N nodes, what their children are scored from; of a block none.
    pair_logits: of a block that tells what a token before changes, float32 (B, R, K, K): see `package_parts`.
    All are valid until its next pass.
    """

    top_ids: Int64Array
    probabilities: Float32Array
    next_states: Float32Array
    pair_logits: Float32Array | None = None


class TreeStep(NamedTuple):
    """A tree that a speculator has scored in part.

    tree: below the last token whose row is committed, its root. num_scored: first nodes, the root at least, whose rows
    earlier passes have left behind the committed ones. states: float32 (n, E), `next_states` of the parent of each of
    the n others.
    """

    tree: DraftTree
    num_scored: int
    states: Float32Array


class Speculator(Protocol):
    """A loaded speculator of a package.

    part: what the package says of it. max_context: tokens of a text. state_size: numbers of all states of the target
    that it reads of a token.
    """

    part: SpeculatorPart
    max_context: int
    state_size: int

    def new_cache(self, num_slots: int, capacity: int) -> Cache:
        """An empty cache. Row r of a slot is of the (r + 1)th token whose rows it has, wherever the text began.

        Where the target lends rows (`SpeculatorPart.lent`), passes read them in a slot of the target's own cache, whose
        committed rows are all of the text but its last token's, and write none. This one is like that.
        """
        ...

    def catch_up(
        self,
        cache: Cache,
        first_slot: int,
        further: Sequence[Sequence[int]],
        states: Sequence[Float32Array],
        num_drafts: int = 1,
    ) -> SpeculatorResult:
        """Write rows of further tokens of the texts in some slots, without committing them; tells of each one's last.

        states: of each text, float32 (n, state_size), what the target has of the token before each of the n tokens.
        num_drafts: places behind the last token that one which drafts blocks tells of, up to its `max_drafts`.
        Raises ProviderError, and ConfigError where memory is short.
        """
        ...

    def step(self, cache: Cache, first_slot: int, steps: Sequence[TreeStep]) -> SpeculatorResult:
        """Score the nodes of trees that are not scored yet, and tell of each; their rows are never committed. No
        speculator that drafts blocks has this to do.

        Raises as `catch_up`.
        """
        ...


_MOST_SAVED_SLOTS = 1 << 10
_FIRST_CAPACITY = 256  # rows of the cache to begin with


class SpeculatorSlot(TextSlot):
    """A slot of the speculator's cache. start: the first of its tokens that has a row; all behind it have one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.start = 0

    def next_position(self, token_ids: Sequence[int]) -> int:
        """Of the owner's text, the first token without a row; 0 where none has one."""
        num_known = self.num_known(token_ids)
        return num_known if num_known > self.start else 0

    def keep(self, token_ids: Sequence[int], position: int) -> None:
        """Keep rows of the owner's tokens before a position, if they reach up to it: without gaps, or none."""
        if position != self.next_position(token_ids):
            self.start = position
        self.token_ids[:] = token_ids[:position]
        self._num_true = position

    def clear(self) -> None:
        super().clear()
        self.start = 0


class SpeculatorSlots:
    """max_slots: texts that are drafted for together. cache: with as many slots as were needed at once."""

    def __init__(self, speculator: Speculator, max_slots: int) -> None:
        self.cache: Cache = speculator.new_cache(1, min(_FIRST_CAPACITY, speculator.max_context))
        self.max_slots = max_slots
        self.slots: list[SpeculatorSlot] = []

    def take(self, owner: RequestDrafter, token_ids: Sequence[int]) -> SpeculatorSlot:
        """A slot for a text: of the free ones, the one that holds most of it."""
        slot = best_slot(self.slots, lambda each: each.num_held(owner, token_ids) - each.start) or self.add()
        slot.own(owner)
        return slot

    def add(self) -> SpeculatorSlot:
        """One more slot, free."""
        number = len(self.slots)
        if number >= self.cache.num_slots:
            self.cache.reserve_addresses(max(self.max_slots, number + 1))
            self.cache.reserve(number + 1, self.cache.capacity)
        slot = SpeculatorSlot(number)
        self.slots.append(slot)
        return slot

    def fit(self, slot: SpeculatorSlot) -> None:
        """Have the cache hold what a slot says that it does: an interrupt, or a cut, leaves more."""
        self.cache.cut(slot.number, max(len(slot.token_ids) - slot.start, 0))

    def forget(self) -> None:
        """Drop all texts; those still drafted for are read again."""
        for slot in self.slots:
            slot.clear()
            self.cache.cut(slot.number, 0)
            self.cache.trim(slot.number)


def saved_slots(slots: SpeculatorSlots) -> dict[str, Array]:
    """Of each slot its text, where its rows start, and these; none of one with a salt or with rows not finite."""
    arrays: dict[str, Array] = {}
    for number, slot in enumerate(slots.slots):
        slots.fit(slot)
        [rows] = slots.cache.read_slot(slot.number, 0 if slot.salt else slots.cache.lengths[slot.number]).rows
        is_kept = rows.size > 0 and bool(np.isfinite(rows).all())
        arrays[f"text/{number}"] = np.array(slot.token_ids if is_kept else [], np.int32)
        arrays[f"start/{number}"] = np.array([slot.start], np.int32)
        if is_kept:
            arrays[f"rows/{number}"] = rows
    return arrays


def restore_slots(slots: SpeculatorSlots, arrays: Mapping[str, Array], vocab_size: int, max_context: int) -> None:
    """Have what `saved_slots` gave in place of all texts. Raises KeyError or ValueError for what it could not give."""
    texts: list[tuple[list[int], int, Array | None]] = []
    for number in range(min(sum(name.startswith("text/") for name in arrays), _MOST_SAVED_SLOTS)):
        named, first = arrays[f"text/{number}"], arrays[f"start/{number}"]
        is_text = named.dtype == first.dtype == np.int32 and named.ndim == 1 and first.shape == (1,)
        if not is_text or len(named) > max_context or np.any((named < 0) | (named >= vocab_size)):
            raise ValueError("a speculator's text is none")
        if len(named) and not 0 < first[0] < len(named):
            raise ValueError("a speculator's rows start nowhere")
        texts.append((named.tolist(), int(first[0]), arrays[f"rows/{number}"] if len(named) else None))
    [like] = slots.cache.read_slot(0, 0).rows
    for text, start, rows in texts:
        if rows is not None:
            shape = (*like.shape[:2], len(text) - start, like.shape[3])
            if rows.dtype != like.dtype or rows.shape != shape or not np.isfinite(rows).all():
                raise ValueError("a speculator's rows are none")
    slots.forget()
    while len(slots.slots) < len(texts):
        slots.add()
    for slot, (text, start, rows) in zip(slots.slots, texts, strict=False):
        if rows is not None:
            slots.cache.reserve(slots.cache.num_slots, len(text) - start)
            slots.cache.write_slot(slot.number, SlotContents(len(text) - start, (rows,)))
            slot.token_ids, slot.start = text, start
