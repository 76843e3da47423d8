"""N-gram counts in growing arrays, to draft from: of one text that goes on (context) or of many past ones (history)."""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Int32Array, Int64Array
from reader_edge_runtime.drafting.kernels import counts, rows
from reader_edge_runtime.drafting.kernels.arrays import Store

_MIN_KEYS = 1 << 10
_FIRST_BLOCKS = 1 << 8
_BETWEEN_TEXTS = -1

# A history's text has room for this many times its bound, for the gaps that moved texts leave.
_ROOM = 4


class CountStore:
    """A text and the counts over it, with room for num_tokens at first.

    arrays: see kernels/counts.py; replaced when they grow. end: position after the last token, not wrapped.
    """

    def __init__(self, num_tokens: int) -> None:
        header: Int64Array = np.zeros(rows.HEADER, np.int64)
        header[rows.NEXT_BLOCK] = header[rows.NUM_BLOCKS] = rows.ORDER_0_ROW + 1
        blocks = _aligned_blocks(_FIRST_BLOCKS)
        self.arrays = Store(header, _new_table(header, _MIN_KEYS), blocks, _new_text(header, num_tokens + 2))
        self.end = 1

    @property
    def text(self) -> Int32Array:
        """The tokens: that of position p at p modulo the length, a power of two."""
        return self.arrays.text

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def extend(self, token_ids: Int32Array) -> None:
        """Count tokens that continue the text."""
        self.reserve(len(token_ids))
        begin, end = self.end, self.end + len(token_ids)
        self.text[begin:end] = token_ids
        self._learn(begin, end)

    def reserve(self, num_tokens: int) -> None:
        """Have room for the text to go on by so many tokens."""
        num_needed = self.end + num_tokens + 1
        if num_needed > len(self.arrays.text):
            text = _new_text(self.arrays.header, num_needed + num_needed // 2)
            text[: self.end] = self.text[: self.end]
            self.arrays = self.arrays._replace(text=text)

    def went_on(self, num_tokens: int, num_counted: int) -> None:
        """A kernel wrote tokens behind the text, of which it counted the first ones: count the others."""
        if num_counted < num_tokens:
            self._learn(self.end + num_counted, self.end + num_tokens)
        else:
            self.end += num_tokens

    def _learn(self, begin: int, end: int) -> None:
        while True:
            begin += counts.learn(self.arrays, begin, end)
            if begin == end:
                break
            self._grow()
        self.end = end

    def _grow(self) -> None:
        """Double what is nearly full: kernels stop where either could run out within one token."""
        header, table, blocks, _ = self.arrays
        if header[rows.NUM_BLOCKS] * 2 > len(blocks) // rows.BLOCK:
            more_blocks = _aligned_blocks(2 * len(blocks) // rows.BLOCK)
            more_blocks[: len(blocks)] = blocks
            self.arrays = self.arrays._replace(rows=more_blocks)
        if header[rows.NUM_KEYS] * 2 > len(table):
            larger = _new_table(header, 2 * len(table))
            counts.move_keys(table, header, larger)
            self.arrays = self.arrays._replace(table=larger)


@dataclass(slots=True)
class _TextSpan:
    """Tokens at [begin, end), not wrapped. used: when a request last repeated a part, 0 for not since it last moved."""

    begin: int
    end: int
    used: int = 0


class History(CountStore):
    """Past texts, bounded in tokens, in the order of their last use; the first is forgotten first.

    A text that was used moves behind the others: its stored positions change, and nothing is counted again.
    num_tokens: tokens that are remembered. epoch: grows when texts are forgotten or move, so that positions are void.
    """

    def __init__(self, max_tokens: int) -> None:
        super().__init__(_ROOM * (max_tokens + 2))
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self.epoch = 0
        self._texts: list[_TextSpan] = []
        self._clock = 0

    def add(self, token_ids: Int32Array) -> None:
        """Remember one text; of a text longer than the bound, its end."""
        token_ids = token_ids[max(0, len(token_ids) - self.max_tokens) :]
        if not len(token_ids):
            return
        # one position between texts also counts against the room
        while self.num_tokens + len(self._texts) + len(token_ids) > self.max_tokens and self._texts:
            first = self._texts.pop(0)
            counts.unlearn(self.arrays, first.begin, first.end)
            self._clear(first)
            self.num_tokens -= first.end - first.begin
        text = self._write_behind(token_ids)
        self._learn(text.begin, text.end)
        self.end = text.end + 1
        self.num_tokens += len(token_ids)

    def note_use(self, position: int) -> None:
        """A request went through the token before `position`, a place in `text`."""
        before = self.end - 1 - ((self.end - position) & (len(self.text) - 1))
        i = bisect_right(self._texts, before, key=lambda text: text.begin) - 1
        if i >= 0 and before < self._texts[i].end:
            self._clock += 1
            self._texts[i].used = self._clock

    def renew_used(self) -> list[Int32Array]:
        """Move the texts whose use was noted behind the others, in the order of their use, and return them."""
        used = sorted((text for text in self._texts if text.used), key=lambda text: text.used)
        for text in used:
            self._move_behind(text)
        if self._texts and self.end - self._texts[0].begin > len(self.text) // 2:
            for text in self._texts.copy():  # closes the gaps that moved texts left
                self._move_behind(text)
        return [self._tokens(text) for text in self._texts[len(self._texts) - len(used) :]]

    def texts(self) -> list[Int32Array]:
        """The texts remembered, least recently used first."""
        return [self._tokens(text) for text in self._texts]

    def _tokens(self, text: _TextSpan) -> Int32Array:
        return self.text.take(np.arange(text.begin, text.end), mode="wrap")

    def _write_behind(self, token_ids: Int32Array) -> _TextSpan:
        text = _TextSpan(self.end, self.end + len(token_ids))
        self._write(text.begin, token_ids)
        self.text[text.end & (len(self.text) - 1)] = _BETWEEN_TEXTS
        self._texts.append(text)
        return text

    def _write(self, begin: int, token_ids: Int32Array) -> None:
        self.text.put(np.arange(begin, begin + len(token_ids)), token_ids, mode="wrap")

    def _move_behind(self, text: _TextSpan) -> None:
        self._texts.remove(text)
        moved = self._write_behind(self._tokens(text))
        counts.relocate(self.arrays, text.begin, text.end, moved.begin)
        self.end = moved.end + 1
        self._clear(text)

    def _clear(self, text: _TextSpan) -> None:
        self._write(text.begin, np.full(text.end - text.begin, _BETWEEN_TEXTS, np.int32))
        self.epoch += 1


def _new_table(header: Int64Array, num_keys: int) -> Int64Array:
    header[rows.TABLE_SHIFT] = 64 - (num_keys - 1).bit_length()
    return np.zeros((num_keys, 2), np.int64)


def _new_text(header: Int64Array, num_tokens: int) -> Int32Array:
    capacity = 1 << (num_tokens - 1).bit_length()
    header[rows.TEXT_MASK] = capacity - 1
    return np.full(capacity, _BETWEEN_TEXTS, np.int32)


def _aligned_blocks(num_blocks: int) -> Int32Array:
    """Zeroed blocks that each lie in one cache line."""
    numbers = np.zeros((num_blocks + 1) * rows.BLOCK, np.int32)
    start = -(numbers.ctypes.data // numbers.itemsize) % rows.BLOCK
    return numbers[start : start + num_blocks * rows.BLOCK]
