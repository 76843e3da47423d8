"""Rows of counts: the tokens that followed a suffix, most frequent first, in blocks of one cache line.

rows: int32 (R * BLOCK,). A row's first block: [next block, total, number of entries, last position, then 4 entries];
its further blocks: [next block, then 5 entries]. An entry: token, count, last position. In a row of MAX_ENTRIES tokens
a new one replaces the least frequent; of several, the one seen least recently. Free blocks are linked by their first
number.
"""

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Int32Vector, Int64Vector, Number
from reader_edge_runtime.drafting.kernels.kernel import part, small_part

BLOCK = 16
MAX_ENTRIES = 24

# Fields of a store's header, see counts.py. Blocks 0 (no block) and 1 (the row of order 0) are never freed.
NUM_KEYS, TABLE_SHIFT, TEXT_MASK, NEXT_BLOCK, FREE_BLOCK, NUM_BLOCKS = range(6)
HEADER = 8
ORDER_0_ROW = 1


@small_part
def next_entry(rows: Int32Vector, a: Number) -> Number:
    """Index of the entry after the one at `a`."""
    a += 3
    if a & (BLOCK - 1) == 0:
        a = rows[a - BLOCK] * BLOCK + 1
    return a


@small_part
def new_block(header: Int64Vector, rows: Int32Vector) -> Number:
    block = header[FREE_BLOCK]
    if block:
        header[FREE_BLOCK] = rows[block * BLOCK]
    else:
        block = header[NEXT_BLOCK]
        header[NEXT_BLOCK] += 1
    header[NUM_BLOCKS] += 1
    for i in range(block * BLOCK, block * BLOCK + 4):
        rows[i] = 0
    return block


@small_part
def _free_block(header: Int64Vector, rows: Int32Vector, block: Number) -> None:
    rows[block * BLOCK] = header[FREE_BLOCK]
    header[FREE_BLOCK] = block
    header[NUM_BLOCKS] -= 1


@small_part
def _put_entry(rows: Int32Vector, a: Number, token: Number, count: Number, position: Number) -> None:
    rows[a] = token
    rows[a + 1] = count
    rows[a + 2] = position


@small_part
def _copy_entry(rows: Int32Vector, to: Number, a: Number) -> None:
    rows[to] = rows[a]
    rows[to + 1] = rows[a + 1]
    rows[to + 2] = rows[a + 2]


@small_part
def _append_place(header: Int64Vector, rows: Int32Vector, base: Number, last: Number) -> Number:
    """Index for one more entry after the one at `last`."""
    if rows[base + 2] == 0:
        return base + 4
    if (last + 3) & (BLOCK - 1):
        return last + 3
    block = new_block(header, rows)
    rows[(last // BLOCK) * BLOCK] = block
    return block * BLOCK + 1


@part
def row_add(header: Int64Vector, rows: Int32Vector, row: Number, token: Number, position: Number) -> None:
    """Count one more occurrence of `token`."""
    base = row * BLOCK
    num = rows[base + 2]
    rows[base + 1] += 1
    rows[base + 3] = position
    a = base + 4
    last = np.int64(0)
    leader = a  # first entry with the count of the entry at a
    leader_count = -1
    oldest = a  # of the entries with that count, the one with the oldest position
    for _ in range(num):
        count = rows[a + 1]
        if count != leader_count:
            leader = a
            leader_count = count
            oldest = a
        elif _is_older(rows, a, oldest, position):
            oldest = a
        if rows[a] == token:
            _copy_entry(rows, a, leader)
            _put_entry(rows, leader, token, count + 1, position)
            return
        last = a
        a = next_entry(rows, a)
    if num < MAX_ENTRIES:
        a = _append_place(header, rows, base, last)
        rows[base + 2] += 1
    else:
        a = oldest
        if leader_count > 1:
            _copy_entry(rows, a, last)
            a = last  # a new token has the lowest count
    if leader_count == 1:
        _copy_entry(rows, a, leader)
        a = leader
    _put_entry(rows, a, token, 1, position)


@small_part
def _is_older(rows: Int32Vector, a: Number, b: Number, now: Number) -> Number:
    # Ages are compared, since positions in the ring may have wrapped.
    return ((now - rows[a + 2]) & 0x7FFFFFFF) > ((now - rows[b + 2]) & 0x7FFFFFFF)


@part
def row_renew(rows: Int32Vector, row: Number, token: Number, position: Number) -> None:
    """Note that an occurrence of `token` stands at `position` now, behind all others."""
    base = row * BLOCK
    rows[base + 3] = position
    a = base + 4
    leader = a
    for _ in range(rows[base + 2]):
        if rows[a + 1] != rows[leader + 1]:
            leader = a
        if rows[a] == token:
            count = rows[a + 1]
            _copy_entry(rows, a, leader)
            _put_entry(rows, leader, token, count, position)
            return
        a = next_entry(rows, a)


@part
def row_remove(header: Int64Vector, rows: Int32Vector, row: Number, token: Number, position: Number) -> Number:
    """Remove the oldest occurrence counted in a row. Returns the total that is left."""
    base = row * BLOCK
    rows[base + 1] -= 1
    a = base + 4
    for _ in range(rows[base + 2]):
        if rows[a] == token:
            if rows[a + 2] == position:
                _drop_entry(header, rows, base, a)
            elif rows[a + 1] > 1:
                _lower_entry(rows, base, a)
            break
        a = next_entry(rows, a)
    return rows[base + 1]


@part
def _end_of_row(rows: Int32Vector, base: Number) -> Number:
    a = base + 4
    for _ in range(rows[base + 2] - 1):
        a = next_entry(rows, a)
    return a


@part
def _lower_entry(rows: Int32Vector, base: Number, a: Number) -> None:
    """Lower a count by one; the entry swaps places with the last one of its count to keep the order."""
    count = rows[a + 1]
    token, position = rows[a], rows[a + 2]
    last = a
    end = _end_of_row(rows, base)
    while last != end:
        following = next_entry(rows, last)
        if rows[following + 1] != count:
            break
        last = following
    _copy_entry(rows, a, last)
    _put_entry(rows, last, token, count - 1, position)


@part
def _drop_entry(header: Int64Vector, rows: Int32Vector, base: Number, a: Number) -> None:
    end = _end_of_row(rows, base)
    while a != end:
        following = next_entry(rows, a)
        _copy_entry(rows, a, following)
        a = following
    rows[base + 2] -= 1
    block = end // BLOCK
    if end & (BLOCK - 1) == 1 and block * BLOCK != base:
        before = base // BLOCK
        while rows[before * BLOCK] != block:
            before = rows[before * BLOCK]
        rows[before * BLOCK] = 0
        _free_block(header, rows, block)


@part
def free_row(header: Int64Vector, rows: Int32Vector, row: Number) -> None:
    while row:
        following = rows[row * BLOCK]
        _free_block(header, rows, row)
        row = following
