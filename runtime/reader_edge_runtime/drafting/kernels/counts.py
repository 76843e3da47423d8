"""Counts of the tokens that followed every suffix of up to ORDER tokens, updated token by token in both directions.

A store is four arrays:
    header  int64 (HEADER,): how much of the others is used, constants in rows.py
    table   int64 (S, 2): hash table with open addressing, S a power of two: (key of a suffix or 0, value)
    rows    int32 (R * BLOCK,): blocks of BLOCK numbers, 64 bytes, one cache line
    text    int32 (C,): the tokens themselves, C a power of two; position p is stored at p & (C - 1)

The value of a suffix that occurred once is the token that followed and its position (a "single"); of any other, the
number of a row of counts (rows.py). A suffix of n + 1 tokens is stored only if its last n tokens occurred at least
twice: until then the single suffices, and a longer match is read from the text. So a token costs about two entries,
however large ORDER is, and every order gets the answer that a plain table would give. Keys are 64-bit hashes: among a
billion suffixes, two share one with a probability of a few percent, which makes a draft a little worse.
"""

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Int32Vector, Int64Table, Int64Vector, Number, Store
from reader_edge_runtime.drafting.kernels.kernel import kernel, part, small_part
from reader_edge_runtime.drafting.kernels.rows import (
    BLOCK,
    NUM_BLOCKS,
    NUM_KEYS,
    ORDER_0_ROW,
    TABLE_SHIFT,
    TEXT_MASK,
    free_row,
    new_block,
    row_add,
    row_remove,
    row_renew,
)

ORDER = 8
SINGLE_MARK = 0x80000000

# The most blocks that one token can take: a new row and one more block at each order.
_BLOCKS_A_TOKEN = 2 * (ORDER + 1)

HASH_START = np.uint64(0x243F6A8885A308D3)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINAL = np.uint64(0xD6E8FEB86659FD93)
_S32 = np.uint64(32)
_S29 = np.uint64(29)


@small_part
def hash_push(state: Number, token: Number) -> Number:
    """The hash state of a suffix one token longer, from HASH_START."""
    return (state ^ np.uint64(token + 1)) * _MULTIPLIER + HASH_START


@small_part
def hash_key(state: Number) -> Number:
    """The key of a suffix, never 0, from its hash state."""
    x = (state ^ (state >> _S32)) * _FINAL
    x = x ^ (x >> _S29)
    return np.int64(x) | 1


@small_part
def find(header: Int64Vector, table: Int64Table, key: Number) -> Number:
    """Index of `key` in the table; ~index of the empty place for it if it is not there."""
    mask = table.shape[0] - 1
    i = np.int64(np.uint64(key) >> np.uint64(header[TABLE_SHIFT]))
    while table[i, 0] != key:
        if table[i, 0] == 0:
            return ~i
        i = (i + 1) & mask
    return i


@small_part
def pack_single(token: Number, position: Number) -> Number:
    """A single: the token in the high half, the position and a mark in the low half."""
    return (np.int64(token) << 32) | np.int64(SINGLE_MARK) | np.int64(position)


@small_part
def is_single(value: Number) -> Number:
    return (value & np.int64(SINGLE_MARK)) != 0


@small_part
def single_position(value: Number) -> Number:
    return value & np.int64(SINGLE_MARK - 1)


@small_part
def single_token(value: Number) -> Number:
    return value >> 32


@part
def _delete_key(header: Int64Vector, table: Int64Table, i: Number) -> None:
    """Empty a place and move later keys of its probe sequence up, which needs no tombstones."""
    mask = table.shape[0] - 1
    shift = np.uint64(header[TABLE_SHIFT])
    j = i
    while True:
        j = (j + 1) & mask
        if table[j, 0] == 0:
            break
        home = np.int64(np.uint64(table[j, 0]) >> shift)
        if ((j - home) & mask) >= ((j - i) & mask):
            table[i, 0] = table[j, 0]
            table[i, 1] = table[j, 1]
            i = j
    table[i, 0] = 0
    table[i, 1] = 0
    header[NUM_KEYS] -= 1


@small_part
def _push_down(
    header: Int64Vector, table: Int64Table, text: Int32Vector, state: Number, order: Number, position: Number
) -> None:
    """Store a single again under the suffix one token longer, since its own suffix of `order` tokens occurs again."""
    mask = header[TEXT_MASK]
    token = text[(position - order - 1) & mask]
    if order >= ORDER or token < 0:
        return
    key = hash_key(hash_push(state, token))
    i = find(header, table, key)
    if i < 0:
        table[~i, 0] = key
        table[~i, 1] = pack_single(text[position], position)
        header[NUM_KEYS] += 1


@kernel
def learn(store: Store, begin: Number, end: Number) -> Number:
    """Count text[begin:end], part of one text that a negative token precedes; positions are not wrapped.

    Returns how many tokens were counted before table or rows were full.
    """
    header, table, rows, text = store
    mask = header[TEXT_MASK]
    max_keys = table.shape[0] * 5 // 8
    last_block = rows.shape[0] // BLOCK - _BLOCKS_A_TOKEN
    for p in range(begin, end):
        if header[NUM_KEYS] + 2 * ORDER > max_keys or header[NUM_BLOCKS] > last_block:
            return p - begin
        position = p & mask
        token = text[position]
        row_add(header, rows, ORDER_0_ROW, token, position)
        state = HASH_START
        for order in range(1, ORDER + 1):
            before = text[(p - order) & mask]
            if before < 0:
                break
            state = hash_push(state, before)
            key = hash_key(state)
            i = find(header, table, key)
            if i < 0:
                table[~i, 0] = key
                table[~i, 1] = pack_single(token, position)
                header[NUM_KEYS] += 1
                break
            value = table[i, 1]
            if is_single(value):
                row = new_block(header, rows)
                other = single_position(value)
                row_add(header, rows, row, single_token(value), other)
                table[i, 1] = row
                _push_down(header, table, text, state, order, other)
            else:
                row = value
            row_add(header, rows, row, token, position)
    return end - begin


@kernel
def unlearn(store: Store, begin: Number, end: Number) -> None:
    """Take text[begin:end], the oldest tokens counted, out of the counts."""
    header, table, rows, text = store
    mask = header[TEXT_MASK]
    for p in range(begin, end):
        position = p & mask
        token = text[position]
        row_remove(header, rows, ORDER_0_ROW, token, position)
        state = HASH_START
        for order in range(1, ORDER + 1):
            before = text[(p - order) & mask]
            if before < 0:
                break
            state = hash_push(state, before)
            i = find(header, table, hash_key(state))
            if i < 0:
                break
            value = table[i, 1]
            if is_single(value):
                _delete_key(header, table, i)
                continue
            left = row_remove(header, rows, value, token, position)
            if left == 1:
                a = value * BLOCK + 4
                table[i, 1] = pack_single(rows[a], rows[a + 2])
                free_row(header, rows, value)


@kernel
def relocate(store: Store, begin: Number, end: Number, to: Number) -> None:
    """Change the stored positions of text[begin:end] to those of its copy at `to`, behind all other texts."""
    header, table, rows, text = store
    mask = header[TEXT_MASK]
    for p in range(begin, end):
        position = p & mask
        moved = (p - begin + to) & mask
        token = text[position]
        row_renew(rows, ORDER_0_ROW, token, moved)
        state = HASH_START
        for order in range(1, ORDER + 1):
            before = text[(p - order) & mask]
            if before < 0:
                break
            state = hash_push(state, before)
            i = find(header, table, hash_key(state))
            if i < 0:
                break
            value = table[i, 1]
            if not is_single(value):
                row_renew(rows, value, token, moved)
            elif single_position(value) == position:
                table[i, 1] = pack_single(token, moved)


@kernel
def move_keys(old: Int64Table, header: Int64Vector, table: Int64Table) -> None:
    """Copy all keys of an old table to a larger, empty one."""
    for j in range(old.shape[0]):
        if old[j, 0] != 0:
            i = ~find(header, table, old[j, 0])
            table[i, 0] = old[j, 0]
            table[i, 1] = old[j, 1]
