"""The KV cache of a pipeline's last stage, and a log of its changes, which go to the others with the next pass."""

from collections.abc import Sequence
from typing import NamedTuple

from reader_edge_runtime.arrays import Int64Array
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.package.manifest import Manifest

NEW, MOVE, SWAP, RESIZE, COPY, RESERVE_ADDRESSES, TRIM, FILL, DROP = range(9)


class CacheStep(NamedTuple):
    """Something that happened to a cache.

    lengths: committed rows of all slots before it. numbers: of NEW and RESIZE slots and capacity; of MOVE slot, start
    and rows; of SWAP two slots; of COPY two slots and a length; of RESERVE_ADDRESSES slots; of TRIM a slot;
    of FILL a slot and a length; of DROP the numbers of other caches, which are no more.
    """

    kind: int
    lengths: Sequence[int]
    numbers: Sequence[int]


class LoggedCache(HostCache):
    """number: by which the other stages know it, 0 where they do not. numbers: those that it has had there. epoch: see
    `InFlightPasses`, when they last did.

    texts: of each slot, the tokens of its rows; rows that were only assumed are not in it.
    """

    has_all_rows = False

    def __init__(self, manifest: Manifest, num_slots: int, capacity: int) -> None:
        self.number = self.epoch = 0
        self.numbers: list[int] = []
        self.texts: list[list[int]] = [[] for _ in range(num_slots)]
        self._passed: dict[int, list[int]] = {}  # tokens of each slot's last tree
        self._steps: list[CacheStep] = []
        self._num_reserved = 0
        super().__init__(manifest, num_slots, capacity)

    def take_steps(self) -> list[CacheStep]:
        """What happened since they were last taken, for stages that have done all before."""
        steps, self._steps = self._steps, []
        return steps

    def steps_to_rebuild(self) -> list[CacheStep]:
        """What leads to a cache of this size without a row, for stages that know nothing of it."""
        self._steps = []
        steps = [CacheStep(NEW, (), (self.num_slots, self.capacity))]
        if self._is_paged:
            steps.append(CacheStep(RESERVE_ADDRESSES, [0] * self.num_slots, (self._num_reserved,)))
        return steps

    def note_pass(self, first_slot: int, trees: Sequence[DraftTree]) -> None:
        """Remember the tokens that a pass wrote rows of."""
        for slot, tree in enumerate(trees, first_slot):
            self._passed[slot] = tree.token_ids

    def commit(self, slot: int, path: Sequence[int]) -> None:
        length, passed = self.lengths[slot], self._passed[slot]
        super().commit(slot, path)
        self._have_text(slot, length)
        self.texts[slot][length:] = [passed[node] for node in path]

    def reserve_addresses(self, num_slots: int) -> None:
        self._num_reserved = num_slots
        self._log(RESERVE_ADDRESSES, num_slots)
        super().reserve_addresses(num_slots)

    def trim(self, slot: int) -> None:
        self._log(TRIM, slot)
        super().trim(slot)

    def fill(self, slot: int, length: int) -> None:
        self._log(FILL, slot, length)
        super().fill(slot, length)

    def copy(self, slot: int, other: int, length: int) -> int:
        length = self.usable(slot, length)
        self._log(COPY, slot, other, length)
        self._have_text(slot, length)
        self.texts[other] = self.texts[slot][:length]
        return super().copy(slot, other, length)

    def _have_text(self, slot: int, length: int) -> None:
        """Have a token for each of a slot's first rows; those that were only assumed play no part."""
        text = self.texts[slot]
        text.extend([0] * (length - len(text)))

    def _log(self, kind: int, *numbers: int) -> None:
        self._steps.append(CacheStep(kind, list(self.lengths), [int(number) for number in numbers]))

    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        self._log(MOVE, slot, start, *rows)
        super()._move_rows(slot, rows, start)

    def _swap_contents(self, slot: int, other: int) -> None:
        self._log(SWAP, slot, other)
        super()._swap_contents(slot, other)
        self.texts[slot], self.texts[other] = self.texts[other], self.texts[slot]
        passed = {slot: self._passed.pop(other, []), other: self._passed.pop(slot, [])}
        self._passed.update(passed)

    def _resize(self, num_slots: int, capacity: int) -> None:
        super()._resize(num_slots, capacity)  # where memory is short, nothing has happened
        self._log(RESIZE, num_slots, capacity)
        self.texts[num_slots:] = []
        self.texts.extend([] for _ in range(num_slots - len(self.texts)))
