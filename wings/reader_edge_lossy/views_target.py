"""A model that answers from two views of a text at once: to a decoder it is a target like any other.

So drafts, which are checked against the mixed distribution, change nothing that is emitted.
"""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.cache import Cache, KvLayout, SlotContents
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import Pass, Target


class ViewsCache(Cache):
    """Slot s has the whole text in slot 2s of `both`, and the retrieved view in the one behind it.

    Lengths, cuts and copies are of whole texts; the retrieved view is dropped where one is cut, and read again.
    has_view: of each slot, whether its retrieved view is there. For models of attention alone.
    """

    def __init__(self, layout: KvLayout, both: Cache) -> None:
        super().__init__(layout, both.num_slots // 2, both.capacity)
        self.both = both
        self.has_view = [False] * self.num_slots

    @property
    def num_bytes(self) -> int:
        return self.both.num_bytes

    def num_bytes_of(self, lengths: Sequence[int], capacity: int) -> int:
        return self.both.num_bytes_of([length for length in lengths for _ in range(2)], capacity)

    def reserve_addresses(self, num_slots: int) -> None:
        self.both.reserve_addresses(2 * num_slots)

    def trim(self, slot: int) -> None:
        self.both.trim(2 * slot)
        self.both.trim(2 * slot + 1)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        self.both.commit(2 * slot, path)
        if self.has_view[slot]:
            self.both.commit(2 * slot + 1, path)
        self.lengths[slot] = self.both.lengths[2 * slot]

    def cut(self, slot: int, length: int) -> int:
        self.drop_view(slot)
        self.lengths[slot] = length = self.both.cut(2 * slot, length)
        return length

    def drop_view(self, slot: int) -> None:
        """Forget the retrieved view of a text."""
        self.both.cut(2 * slot + 1, 0)
        self.has_view[slot] = False

    def assume(self, slot: int, length: int) -> None:
        self.both.assume(2 * slot, length)
        self.both.assume(2 * slot + 1, length)
        self.has_view[slot] = True
        super().assume(slot, length)

    def fill(self, slot: int, length: int) -> None:
        self.both.fill(2 * slot, length)
        self.drop_view(slot)
        super().assume(slot, length)

    def read_slot(self, slot: int, length: int) -> SlotContents:
        return self.both.read_slot(2 * slot, length)

    def _write_contents(self, slot: int, contents: SlotContents, start: int) -> None:
        self.drop_view(slot)
        self.both.write_slot(2 * slot, contents, start)

    def _resize(self, num_slots: int, capacity: int) -> None:
        self.both.resize(2 * num_slots, capacity)
        self.has_view = self.has_view[:num_slots] + [False] * (num_slots - self.num_slots)

    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        """Never called: `commit` leaves it to the cache of both."""

    def _swap_contents(self, slot: int, other: int) -> None:
        for view in range(2):
            self.both.swap(2 * slot + view, 2 * other + view)
        self.has_view[slot], self.has_view[other] = self.has_view[other], self.has_view[slot]


class ViewsResult(ForwardResult):
    """What both views say, mixed. whole: what the whole text alone says, logits included."""

    whole: ForwardResult


class ViewsTarget(Target):
    """Mixes logits: (1 - weight) of the whole text's and `weight` of the retrieved view's, in one pass over both.

    Hidden states are the whole text's. Where a slot's view was not read yet, its passes are of the whole text alone.
    """

    def __init__(self, target: Target, weight: float) -> None:
        self.manifest, self.provider = target.manifest, target.provider
        self.is_native, self.instructions = target.is_native, target.instructions
        self.min_rows, self.pass_sizes = target.min_rows, target.pass_sizes
        self.pass_facts = (*target.pass_facts, "two views")  # whose passes take longer
        self._target = target
        self._weight = np.float32(weight)

    def new_cache(self, num_slots: int, capacity: int) -> ViewsCache:
        return ViewsCache(self.manifest, self._target.new_cache(2 * num_slots, capacity))

    def prefill_chunk(self, past: int) -> int:
        return self._target.prefill_chunk(past)

    def with_min_rows(self, min_rows: int) -> "ViewsTarget":
        return ViewsTarget(self._target.with_min_rows(min_rows), float(self._weight))

    def release_memory(self) -> None:
        self._target.release_memory()

    def read_view(self, cache: ViewsCache, slot: int, token_ids: list[int]) -> None:
        """Have these tokens, and no others, as the retrieved view of a slot."""
        cache.drop_view(slot)
        view, start = 2 * slot + 1, 0
        while start < len(token_ids):
            chunk = DraftTree.chain(token_ids[start : start + self.prefill_chunk(start)])
            self._target.forward(
                cache.both, Pass(view, [chunk], [range(len(chunk) - 1, len(chunk))], num_kept=len(chunk))
            )
            cache.both.commit(view, range(len(chunk)))
            start += len(chunk)
        cache.has_view[slot] = True

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        assert isinstance(cache, ViewsCache)
        num_trees = len(wanted.trees)
        cache.extend(wanted.first_slot, num_trees, max(map(len, wanted.trees)))
        if not cache.has_view[wanted.first_slot]:  # of a prompt, which is scored alone
            return self._target.forward(cache.both, wanted._replace(first_slot=2 * wanted.first_slot))
        trees = [tree for tree in wanted.trees for _ in range(2)]
        rows = [each for each in wanted.rows for _ in range(2)]
        doubled = wanted._replace(first_slot=2 * wanted.first_slot, trees=trees, rows=rows, wants_logits=True)
        return self._mixed(self._target.forward(cache.both, doubled))

    def mix(self, whole: Float32Array, retrieved: Float32Array) -> Float32Array:
        """Logits (B, R, V) of both views as one."""
        return (1 - self._weight) * whole + self._weight * retrieved

    def _mixed(self, result: ForwardResult) -> ViewsResult:
        logits, layer_states = result.wanted_logits, result.layer_states
        mixed = self.mix(logits[::2], logits[1::2])
        hidden_states = None if result.hidden_states is None else result.hidden_states[::2]
        layer_states = None if layer_states is None else layer_states[:, ::2]
        both = ViewsResult(*_best(mixed, self.manifest.top_k), mixed, None, hidden_states, layer_states)
        both.whole = ForwardResult(result.top_ids[::2], result.top_logits[::2], logits[::2])
        return both


def _best(logits: Float32Array, num: int) -> tuple[Int64Array, Float32Array]:
    """Ids and logits (B, R, num) of the highest, best first, equals by id."""
    ids = np.argpartition(-logits, num - 1, axis=-1)[..., :num] if num < logits.shape[-1] else np.argsort(-logits)
    ids.sort(axis=-1)
    order = np.argsort(-np.take_along_axis(logits, ids, -1), axis=-1, kind="stable")
    ids = np.take_along_axis(ids, order, -1)
    return ids, np.take_along_axis(logits, ids, -1)
