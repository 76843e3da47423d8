"""What a file of answers must hold to be learned from: others may have made it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_runtime.arrays import Array

ANSWER_ARRAYS = tuple(field.name for field in fields(RecordedAnswer))

_DTYPES = dict(zip(ANSWER_ARRAYS, ("<i4", "<i4", "<f2", "<i4", "<f4"), strict=True))
_IDS = ("prompt_ids", "token_ids", "top_ids")


@dataclass(frozen=True, slots=True)
class AnswerSizes:
    """vocab_size: V of the package that answered. state_size: numbers of a state.

    has_context: whether states of tokens before the prompt's last one are kept too.
    """

    vocab_size: int
    state_size: int
    has_context: bool = False

    def fault(self, arrays: Mapping[str, Array]) -> str | None:
        """The array at fault of what should be all fields of answers on end; None where all are sound.

        lengths: int32 (A, fields), of each answer. num_asked: int32 (1,), which older files lack.
        """
        lengths = arrays.get("lengths", np.empty(0))
        if (
            lengths.dtype != "<i4"
            or lengths.shape[1:] != (len(ANSWER_ARRAYS),)
            or not len(lengths)
            or lengths.min() < 0
        ):
            return "lengths"
        totals = lengths.sum(0, np.int64)
        num_top = arrays.get("top_ids", lengths).shape[-1:]
        rows = {"states": (self.state_size,), "top_ids": num_top, "top_logits": num_top}
        for name, total in zip(ANSWER_ARRAYS, totals.tolist(), strict=True):
            array = arrays.get(name, lengths)
            if name not in arrays or array.dtype != _DTYPES[name] or array.shape != (total, *rows.get(name, ())):
                return name
            if name in _IDS and array.size and not 0 <= array.min() <= array.max() < self.vocab_size:
                return name
        return self._fault_of_lengths(lengths) or _fault_of_numbers(arrays)

    def _fault_of_lengths(self, lengths: Array) -> str | None:
        prompts, tokens, states, tops, logits = lengths.T.astype(np.int64)
        context = states - tops
        are_whole = (tops > 0) & (tokens == tops + 1) & (logits == tops)
        is_known = (context >= 0) & (context <= (prompts if self.has_context else 0))
        return None if (are_whole & is_known).all() else "lengths"


def _fault_of_numbers(arrays: Mapping[str, Array]) -> str | None:
    logits, num_asked = arrays["top_logits"], arrays.get("num_asked", np.zeros(1, np.int32))
    if not logits.size or not np.isfinite(logits).all():
        return "top_logits"
    is_sound = num_asked.dtype == "<i4" and num_asked.shape == (1,) and num_asked[0] >= 0
    return None if is_sound else "num_asked"
