"""A target that checks, in passing, whether the best successors it reports are those of its logits."""

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.target import Cache, ForwardResult, Pass, Target


class WatchedTarget:
    """A `Target` that does what another does, and compares the rows of passes whose logits are read.

    num_rows: rows whose logits were read, those of rejected nodes too. num_rows_agreeing: those whose top ids and top
    logits are what the logits say, the lowest id of equals first.
    """

    def __init__(self, target: Target) -> None:
        self.num_rows = 0
        self.num_rows_agreeing = 0
        self.manifest, self.timing_facts = target.manifest, target.timing_facts
        self.provider, self.is_native, self.min_rows = target.provider, target.is_native, target.min_rows
        self._target = target

    def new_cache(self, num_slots: int, capacity: int) -> Cache:
        return self._target.new_cache(num_slots, capacity)

    def prefill_chunk(self, past: int) -> int:
        return self._target.prefill_chunk(past)

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        result = self._target.forward(cache, wanted)
        if result.logits is not None:
            agreeing = _agreeing(result, result.logits)
            self.num_rows += agreeing.size
            self.num_rows_agreeing += int(agreeing.sum())
        return result

    def with_min_rows(self, min_rows: int) -> "WatchedTarget":
        return WatchedTarget(self._target.with_min_rows(min_rows))

    def release_memory(self) -> None:
        self._target.release_memory()


def _agreeing(result: ForwardResult, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Whether each row's best successors are right, bool (B, R)."""
    top_ids, top_logits = result.top_ids, result.top_logits
    taken = np.take_along_axis(logits, np.clip(top_ids, 0, logits.shape[-1] - 1), axis=-1)
    is_first = top_ids[..., 0] == logits.argmax(axis=-1)
    is_complete = (logits > top_logits[..., -1:]).sum(axis=-1) < top_ids.shape[-1]
    steps = np.diff(top_logits, axis=-1)
    is_ordered = ((steps < 0) | (steps == 0) & (np.diff(top_ids, axis=-1) > 0)).all(axis=-1)
    is_taken = ((taken == top_logits) & (top_ids >= 0) & (top_ids < logits.shape[-1])).all(axis=-1)
    agreeing: npt.NDArray[np.bool_] = is_first & is_complete & is_ordered & is_taken
    return agreeing
