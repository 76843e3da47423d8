"""A pipeline stage before the last: it repeats the last one's changes of the KV cache, and hands hidden states on."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ConfigError, FrameError, ReaderEdgeError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.pipeline.logged_cache import (
    COPY,
    DROP,
    FILL,
    MOVE,
    NEW,
    RESERVE_ADDRESSES,
    RESIZE,
    SWAP,
    TRIM,
    CacheStep,
)
from reader_edge_runtime.execution.pipeline.pass_frame import MAX_SLOTS, PassFrame

_NUM_NUMBERS = {SWAP: 2, RESIZE: 2, COPY: 3, RESERVE_ADDRESSES: 1, TRIM: 1, FILL: 2}


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
        elif step.kind == RESERVE_ADDRESSES:
            self.reserve_addresses(max(self._at_most(numbers[0], MAX_SLOTS), self.num_slots))
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


MAX_CACHES = 64  # of all clients: the one that was not used for longest gives way


class UnknownCacheError(FrameError):
    """A pass is over rows that are not here."""


class FollowingStage:
    """Any stage but the last, with its rows of every cache."""

    def __init__(self, stage: HostStage) -> None:
        self.stage = stage
        self._caches: OrderedDict[tuple[bytes, int], FollowedCache] = OrderedDict()  # by client, and number there

    def answer(self, client: bytes, data: memoryview, handed: memoryview | None) -> Float32Array:
        """What this stage makes of a frame, float32 (B, N, E).

        handed: what the stage before made of it; None in the first.
        Raises FrameError for what does not fit, ConfigError where memory is short, or ProviderError; after any of them
        nothing is known of the cache any more.
        """
        frame = PassFrame.unpacked(data)
        key = client, frame.cache
        try:
            cache = self._followed(key, frame)
            self._check(frame)
            return self.stage.hand_on(cache, frame.wanted, frame.min_rows, self._stream(frame, handed))
        except MemoryError:
            self._caches.pop(key, None)
            raise ConfigError(
                "A pass needs more memory than is free: lower --max-batch, or give fewer layers."
            ) from None
        except ReaderEdgeError:
            self._caches.pop(key, None)
            raise

    def forget(self, client: bytes) -> None:
        """Let go of the caches of one who asks no more."""
        for key in [key for key in self._caches if key[0] == client]:
            del self._caches[key]

    def _followed(self, key: tuple[bytes, int], frame: PassFrame) -> FollowedCache:
        for step in frame.steps:
            if step.kind == DROP:
                for number in step.numbers:
                    self._caches.pop((key[0], number), None)
            elif step.kind == NEW:
                self._caches[key] = self._new_cache(step)
            elif key in self._caches:
                self._caches[key].follow(step)
        if key not in self._caches:
            raise UnknownCacheError("A frame is of a cache that this stage has no rows of.")
        self._caches.move_to_end(key)
        if len(self._caches) > MAX_CACHES:
            self._caches.popitem(last=False)
        self._caches[key].take_lengths(frame.lengths)
        return self._caches[key]

    def _new_cache(self, step: CacheStep) -> FollowedCache:
        if len(step.numbers) != 2 or not 0 < step.numbers[0] <= MAX_SLOTS or not step.numbers[1]:
            raise FrameError(f"A frame asks for a cache of {step.numbers!s:.40} slots and rows.")
        return FollowedCache(self.stage.manifest, step.numbers[0], step.numbers[1])

    def _check(self, frame: PassFrame) -> None:
        manifest, wanted = self.stage.manifest, frame.wanted
        longest = max(frame.lengths[wanted.first_slot : wanted.first_slot + len(wanted.trees)])
        if longest + frame.num_rows > manifest.max_context:
            raise FrameError(f"A frame has {longest + frame.num_rows} tokens, more than the model's context.")
        if max(max(tree.token_ids) for tree in wanted.trees) >= manifest.vocab_size:
            raise FrameError("A frame has tokens that are not in the model's vocabulary.")

    def _stream(self, frame: PassFrame, handed: memoryview | None) -> Float32Array | None:
        part = self.stage.part
        if part.is_first != (handed is None):
            raise FrameError(f"Stage {part.number} is handed {'no' if handed is None else 'a'} residual stream.")
        shape = len(frame.wanted.trees), frame.num_nodes, part.width
        return None if handed is None else stream_of(handed, shape)


def stream_of(data: memoryview, shape: tuple[int, int, int]) -> Float32Array:
    """The residual stream of these sizes, as a link brought it. Raises FrameError for other bytes."""
    if data.nbytes != 4 * shape[0] * shape[1] * shape[2]:
        raise FrameError(f"A residual stream has {data.nbytes} bytes, not those of {shape} numbers.")
    return np.frombuffer(data, "<f4").reshape(shape).copy()  # links bring it to any place
