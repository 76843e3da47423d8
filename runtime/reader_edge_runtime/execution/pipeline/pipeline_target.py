"""A model over pipeline stages, as a target: frames go through the other machines and back to the last stage, here.

A stage that was lost has no rows when it is back: all committed tokens are scored again there. Prefilled rows have the
bits of decoded ones, so nothing need be stored for it.
"""

import copy
import itertools
import math
import weakref
from typing import cast

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import StageLostError
from reader_edge_runtime.execution.inputs import pass_width
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.pipeline.following_stage import stream_of
from reader_edge_runtime.execution.pipeline.in_flight import FollowingStages, InFlightPasses, RowsLostError, SecondPass
from reader_edge_runtime.execution.pipeline.logged_cache import DROP, CacheStep, LoggedCache
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import Pass

_CHUNK = 128  # tokens of a prompt in one pass
_MAX_LOSSES = 4  # in one pass: a box may be lost again while its rows are scored
_NUM_TIMED = 3
_MAX_MICROBATCHES = 8  # as many caches in all boxes
_MAX_CHUNKS = 8  # in flight together, where a text is scored again


class PipelineTarget:
    """A `reader_edge_runtime.target.Target`. last: the stage here. following: the others."""

    pass_sizes: tuple[int, ...] = ()

    def __init__(self, last: HostStage, following: FollowingStages, min_rows: int = 1) -> None:
        self.manifest = last.manifest
        self.provider = last.provider
        self.is_native = last.is_native
        self.instructions = last.instructions
        self.min_rows = min_rows
        self.pass_facts: tuple[str, ...] = *last.pass_facts, *following.facts
        self.in_flight = InFlightPasses(following)
        self._last = last
        self._last_s = last.pass_seconds()
        self._numbers = itertools.count(1)
        self._dropped: list[int] = []  # numbers of caches that are no more, which the stages learn with a pass

    def with_min_rows(self, min_rows: int) -> "PipelineTarget":
        other = copy.copy(self)
        other.min_rows = min_rows
        return other

    def new_cache(self, num_slots: int, capacity: int) -> LoggedCache:
        cache = LoggedCache(self.manifest, num_slots, capacity)
        weakref.finalize(cache, _drop, self._dropped, cache.numbers)
        return cache

    @property
    def num_stages(self) -> int:
        return self._last.part.num_stages

    @property
    def _slowest_s(self) -> float:
        """Of all stages, which may be in other boxes than they were."""
        return max(self.in_flight.following.slowest_s, self._last_s)

    @property
    def num_microbatches(self) -> int:
        trip_s = self.in_flight.trip_s + self._last_s
        return 1 if math.isinf(trip_s) else min(math.ceil(trip_s / self._slowest_s), _MAX_MICROBATCHES)

    @property
    def links_s(self) -> float:
        trip_s = self.in_flight.trip_s + self._last_s
        return 0.0 if math.isinf(trip_s) else max(trip_s - self.num_stages * self._slowest_s, 0.0)

    def time_way(self) -> None:
        """Learn what a pass takes on its way, for which measured times of passes are kept then."""
        cache = self.new_cache(1, 16)
        for _ in range(_NUM_TIMED):
            self.forward(cache, Pass(0, [DraftTree.root(0)], [range(1)]))
        self.pass_facts += (f"a way of about {2 ** round(math.log2(1000 * self.in_flight.trip_s))} ms",)

    def take_in(self) -> None:
        self.in_flight.take_in()

    def prefill_chunk(self, past: int) -> int:
        return _CHUNK

    def release_memory(self) -> None:
        """Passes keep none here."""

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        cache = cast(LoggedCache, cache)  # made by `new_cache`
        cache.extend(wanted.first_slot, len(wanted.trees), pass_width(wanted.trees, self.min_rows))
        handed, _ = self._handed_in_the_end(cache, wanted)
        return self._scored(cache, wanted, handed)

    def forward_two(self, cache: Cache, first: Pass, second: Pass) -> tuple[ForwardResult, SecondPass]:
        cache = cast(LoggedCache, cache)  # made by `new_cache`
        num_rows = second.num_before + pass_width(second.trees, self.min_rows, second.num_before)
        cache.extend(first.first_slot, 1, num_rows)  # for both, as nothing may happen to it between them
        handed, [number] = self._handed_in_the_end(cache, first, second)

        def scored(data: memoryview) -> ForwardResult:
            return self._scored(cache, second, self._stream(data, second))

        def scored_again() -> ForwardResult:
            cache.number = 0
            return self.forward(cache, second._replace(num_before=0))

        behind = SecondPass(self.in_flight, number, cache.epoch, scored, scored_again)
        try:
            return self._scored(cache, first, handed), behind
        except BaseException:
            behind.drop()
            raise

    def _scored(self, cache: LoggedCache, wanted: Pass, handed: Float32Array) -> ForwardResult:
        """What the last stage makes of a pass."""
        outputs = self._last.forward(cache, wanted, self.min_rows, handed)
        cache.note_pass(wanted.first_slot, wanted.trees)
        return ForwardResult(
            outputs["top_ids"],
            outputs["top_logits"],
            outputs["logits"] if wanted.wants_logits or wanted.wants_log_sum_exp else None,
            None,
            outputs["hidden_states"] if wanted.wants_hidden_states else None,
        )

    def _handed_in_the_end(self, cache: LoggedCache, *passes: Pass) -> tuple[Float32Array, list[int]]:
        for _ in range(_MAX_LOSSES):
            epoch = self.in_flight.epoch
            try:
                return self._handed(cache, *passes)
            except RowsLostError:
                pass
            except StageLostError as lost:
                self.in_flight.come_back(lost, epoch)
        return self._handed(cache, *passes)

    def _handed(self, cache: LoggedCache, *passes: Pass) -> tuple[Float32Array, list[int]]:
        """What the last stage is handed of the first of these, and the numbers of those behind, still in flight.

        The other stages have all rows of earlier passes when it begins.
        """
        number, cache.number = cache.number, 0  # until the pass has come through, what they know is not known
        epoch = self.in_flight.epoch
        if number and cache.epoch == epoch:
            steps = cache.take_steps()
        else:
            number, steps = self._again(cache)
        sent: list[int] = []
        try:
            for wanted in passes:
                sent.append(self._send(PassFrame(number, steps, list(cache.lengths), wanted, self.min_rows)))
                steps = []
            handed = self._stream(self.in_flight.wait(sent[0]), passes[0])
        except BaseException:
            self.in_flight.give_up(sent)
            raise
        cache.number, cache.epoch = number, epoch
        return handed, sent[1:]

    def _stream(self, data: memoryview, wanted: Pass) -> Float32Array:
        width = pass_width(wanted.trees, self.min_rows, wanted.num_before)
        return stream_of(data, (len(wanted.trees), width, self._last.part.width))

    def _again(self, cache: LoggedCache) -> tuple[int, list[CacheStep]]:
        """Have the stages score what is committed; the new number of the cache there, and steps that are left to do."""
        number, steps, lengths = next(self._numbers), cache.steps_to_rebuild(), [0] * cache.num_slots
        _drop(self._dropped, cache.numbers)
        cache.numbers.append(number)
        sent: list[int] = []
        try:
            for slot, length in enumerate(cache.lengths):
                text = cache.texts[slot][:length]
                for start in range(0, len(text), _CHUNK):
                    if len(sent) == _MAX_CHUNKS:
                        self.in_flight.wait(sent.pop(0))
                    chunk = Pass(slot, [DraftTree.chain(text[start : start + _CHUNK])], [range(1)])
                    sent.append(self._send(PassFrame(number, steps, list(lengths), chunk, self.min_rows)))
                    lengths[slot], steps = start + len(chunk.trees[0]), []
            while sent:
                self.in_flight.wait(sent.pop(0))
        finally:
            self.in_flight.give_up(sent)
        return number, steps

    def _send(self, frame: PassFrame) -> int:
        if dropped := self._dropped[:]:
            del self._dropped[: len(dropped)]
            frame = frame._replace(steps=[CacheStep(DROP, (), dropped), *frame.steps])
        return self.in_flight.send(frame.packed())


def _drop(dropped: list[int], numbers: list[int]) -> None:
    dropped += numbers
    numbers.clear()
