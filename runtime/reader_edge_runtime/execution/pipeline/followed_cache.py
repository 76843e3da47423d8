"""The rows of a stage that follows: what happened to the last stage's happens to them, after it was found to fit."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.errors import FrameError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.pipeline.logged_cache import (
    COPY,
    FILL,
    FORESEE,
    MOVE,
    RESIZE,
    SWAP,
    TRIM,
    CacheStep,
)
from reader_edge_runtime.execution.pipeline.pass_frame import MAX_SLOTS

_NUM_NUMBERS = {SWAP: 2, RESIZE: 2, COPY: 3, FORESEE: 1, TRIM: 1, FILL: 2}


class FollowedCache(HostCache):
    def follow(self, step: CacheStep) -> None:
        """Do what happened. Raises FrameError for what this cache cannot do, ConfigError where memory is short."""
        numbers = step.numbers
        if len(numbers) < 2 if step.kind == MOVE else len(numbers) != _NUM_NUMBERS.get(step.kind):
            raise FrameError(f"A frame has a step of kind {step.kind} with {len(numbers)} numbers.")
        self.take_lengths(step.lengths)
        if step.kind == RESIZE:
            if not 0 < numbers[0] <= MAX_SLOTS or not 0 < numbers[1] <= self._manifest.max_context:
                raise FrameError(f"A frame asks for a cache of {numbers[0]} x {numbers[1]} tokens.")
            self.resize(numbers[0], numbers[1])
        elif step.kind == FORESEE:
            self.foresee(max(self._at_most(numbers[0], MAX_SLOTS), self.num_slots))
        else:
            self._follow_slot(step.kind, *numbers)

    def take_lengths(self, lengths: Sequence[int]) -> None:
        """Have so many committed rows in each slot. Raises FrameError."""
        if len(lengths) != self.num_slots or max(lengths) > self.capacity:
            raise FrameError(
                f"A frame is of {len(lengths)} slots, or of more rows than a cache of {self.num_slots} has."
            )
        self.lengths[:] = lengths

    def _follow_slot(self, kind: int, slot: int, *numbers: int) -> None:
        self._at_most(max(slot, numbers[0]) if kind in (SWAP, COPY) else slot, self.num_slots - 1)
        if kind == MOVE:
            start, *rows = numbers
            self._at_most(max([*rows, start + len(rows)]), self.capacity - 1)
            self._move_rows(slot, np.array(rows, np.int64), start)
        elif kind == SWAP:
            self.swap(slot, numbers[0])
        elif kind == COPY:
            self.copy(slot, numbers[0], numbers[1])
        elif kind == TRIM:
            self.trim(slot)
        else:
            self.fill(slot, self._at_most(numbers[0], self.capacity))

    def _at_most(self, number: int, most: int) -> int:
        if number > most:
            raise FrameError(f"A frame asks for slot or row {number} of a cache whose last one is {most}.")
        return number
