"""Index of a workspace's texts: where a request's last tokens occur in them, and how the text goes on there."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Int32Array, Int64Array

KEY = 4  # tokens by which a text is looked up
LONGEST = 32  # beyond which matches count as equally long
_BETWEEN = -1
_MULTIPLIER = 0x9E3779B1
_MASK = (1 << 32) - 1
_MAX_FOUND = 64
_BEHIND, _AHEAD = 16, 64  # tokens around the place where a copy ended, in which it may go on


class TextIndex:
    """Texts, the most important last.

    tokens: int32 (T,), the texts with -1 before and behind each. entries: uint64 (T,), sorted: a hash of the KEY tokens
    before a position in the upper 32 bits, the position in the lower ones.
    """

    def __init__(self, texts: Sequence[Int32Array] = ()) -> None:
        between = np.full(1, _BETWEEN, np.int32)
        self.tokens: Int32Array = np.concatenate([between, *(part for text in texts for part in (text, between))])
        hashes = np.zeros(max(0, len(self.tokens) - KEY), np.uint32)
        is_whole = self.tokens[KEY:] >= 0  # behind the last token of a text there is nothing to draft
        for i in range(KEY):
            tokens = self.tokens[i : i + len(hashes)]
            hashes = (hashes ^ tokens.view(np.uint32)) * np.uint32(_MULTIPLIER)
            is_whole &= tokens >= 0
        entries = hashes.astype(np.uint64) << np.uint64(32)
        entries += np.arange(KEY, KEY + len(hashes), dtype=np.uint64)
        self.entries: npt.NDArray[np.uint64] = entries[is_whole]
        self.entries.sort()

    def find(self, recent: Int32Array) -> tuple[int, int]:
        """The place behind the longest match of `recent`'s end, of equal ones the last, and its length; -1 for none."""
        if len(recent) < KEY:
            return -1, 0
        key = 0
        for token_id in recent[-KEY:].tolist():
            key = ((key ^ token_id) * _MULTIPLIER) & _MASK
        begin, end = np.searchsorted(self.entries, np.array([key << 32, key << 32 | _MASK], np.uint64)).tolist()
        if begin == end:
            return -1, 0
        places = (self.entries[max(begin, end - _MAX_FOUND) : end] & np.uint64(_MASK)).astype(np.int64)[::-1]
        lengths = self._lengths(places, recent)
        best = int(np.argmax(lengths))
        return (int(places[best]), int(lengths[best])) if lengths[best] >= KEY else (-1, 0)

    def find_near(self, place: int, recent: Int32Array) -> tuple[int, int]:
        """Where a copy that ended at `place` may go on: the longest match around there, then the nearest."""
        places = np.arange(max(1, place - _BEHIND), min(place + _AHEAD, len(self.tokens) - 1))
        lengths = self._lengths(places, recent[-KEY:])
        best = int(np.argmax(lengths * (2 * _AHEAD) - np.abs(places - place - 1)))
        return int(places[best]), int(lengths[best])

    def _lengths(self, places: Int64Array, recent: Int32Array) -> Int64Array:
        """How many tokens before each place are the last ones of `recent`."""
        before = np.maximum(places[:, None] - np.arange(1, len(recent) + 1), 0)
        is_same = self.tokens[before] == recent[::-1]
        return np.where(is_same.all(1), len(recent), is_same.argmin(1))
