"""Checks that a store of counts is what its texts say, and a store of successors is whole: slow, for tests."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.arrays import Int32Array, Int64Array
from reader_edge_runtime.drafting.kernels.arrays import Int64Table, Number
from reader_edge_runtime.drafting.kernels.counts import (
    HASH_START,
    ORDER,
    SINGLE_MARK,
    find,
    hash_key,
    hash_push,
    is_single,
    single_position,
)
from reader_edge_runtime.drafting.kernels.layout import LEVELS
from reader_edge_runtime.drafting.kernels.rows import (
    BLOCK,
    FREE_BLOCK,
    MAX_ENTRIES,
    NEXT_BLOCK,
    NUM_BLOCKS,
    NUM_KEYS,
    ORDER_0_ROW,
    TEXT_MASK,
)
from reader_edge_runtime.drafting.kernels.successors import (
    BEFORE,
    NAMED,
    NUM_AND_LEVEL,
    NUMBERS,
    TOKEN,
    WAYS,
    find_pair,
    set_of,
)
from reader_edge_runtime.drafting.sources.count_store import CountStore, History
from reader_edge_runtime.drafting.sources.successor_store import SuccessorStore

Successors = dict[int, tuple[int, int]]


@np.errstate(over="ignore")  # of hashes
def look_up(header: Int64Array, table: Int64Table, text: Int32Array, suffix: Int32Array) -> Number:
    """What followed a suffix of 1 to ORDER tokens, newest token first: a single, the number of a row, 0 for nothing."""
    state = HASH_START
    value = np.int64(0)
    for order in range(len(suffix)):
        if value != 0 and is_single(value):
            if text[(single_position(value) - order - 1) & header[TEXT_MASK]] != suffix[order]:
                return np.int64(0)
            continue
        state = hash_push(state, suffix[order])
        i = find(header, table, hash_key(state))
        if i < 0:
            return np.int64(0)
        value = table[i, 1]
    return value


def successors_of(store: CountStore, suffix: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Token -> (count, last position) of what followed `suffix`, 0 to ORDER tokens, oldest token first."""
    row = ORDER_0_ROW
    if suffix:
        newest_first = np.array(suffix[::-1], np.int32)
        row = int(look_up(store.arrays.header, store.arrays.table, store.text, newest_first))
    if row & SINGLE_MARK:
        return {row >> 32: (1, row & (SINGLE_MARK - 1))}
    return {token: (count, position) for token, count, position in entries(store, row)}


def entries(store: CountStore, row: int) -> list[tuple[int, int, int]]:
    """(token, count, last position) of a row, in the order stored."""
    found: list[tuple[int, int, int]] = []
    block, offset = row, 4
    for _ in range(int(store.arrays.rows[row * BLOCK + 2]) if row else 0):
        if offset == BLOCK:
            block, offset = int(store.arrays.rows[block * BLOCK]), 1
        token, count, position = store.arrays.rows[block * BLOCK + offset :][:3].tolist()
        found.append((token, count, position))
        offset += 3
    return found


@np.errstate(over="ignore")
def after(store: SuccessorStore, *token_ids: int) -> list[tuple[int, float]]:
    """(token, probability) of what was recorded after one token or a pair, best first."""
    if len(token_ids) == 1:
        if token_ids[0] >= len(store.arrays.after_token):
            return []
        record = store.arrays.after_token[token_ids[0]]
    else:
        row = find_pair(store.arrays.after_pair, *token_ids)
        if row < 0:
            return []
        record = store.arrays.after_pair[row]
    return named_tokens(record)


def named_tokens(record: Int32Array) -> list[tuple[int, float]]:
    """(token, probability) of a record, best first."""
    num = int(record[NUM_AND_LEVEL]) // LEVELS
    numbers = record[NUMBERS:].view(np.uint16)[:num]
    return list(zip(record[NAMED : NAMED + num].tolist(), (numbers / 65536).tolist(), strict=True))


def count_plainly(texts: Sequence[Sequence[int]], ends: Sequence[int]) -> dict[tuple[int, ...], Successors]:
    """Suffix -> token -> (count, last position), by the definition. ends: each text's position after its last token."""
    found: dict[tuple[int, ...], Successors] = {}
    for text, end in zip(texts, ends, strict=True):
        for i, token in enumerate(text):
            for order in range(min(ORDER, i) + 1):
                successors = found.setdefault(tuple(text[i - order : i]), {})
                successors[token] = (successors.get(token, (0, 0))[0] + 1, end - len(text) + i)
    return found


def check_integrity(
    store: CountStore, texts: Sequence[Sequence[int]], ends: Sequence[int], forgotten: Sequence[Sequence[int]] = ()
) -> None:
    """Raise AssertionError unless the store counts exactly these texts, the oldest first, and wastes no space.

    forgotten: texts it had before. A row that was full with their tokens has left some of the later texts out.
    """
    before = count_plainly(forgotten, [len(text) for text in forgotten])
    for suffix, successors in count_plainly(texts, ends).items():
        is_whole = len({*successors, *before.get(suffix, ())}) <= MAX_ENTRIES
        _check_row(store, suffix, successors, is_whole)
    used = _check_table(store)
    _check_blocks(store, used)
    _check_positions(store, used, texts, ends)


@np.errstate(over="ignore")
def check_successors(store: SuccessorStore) -> None:
    """Raise AssertionError unless every record names distinct tokens, best first, and stands where it is looked for."""
    for token in np.flatnonzero(store.arrays.after_token[:, NUM_AND_LEVEL]).tolist():
        assert _check_record(store.arrays.after_token[token]) == token, (
            f"The record of {token} is that of another token."
        )
    rows = np.flatnonzero(store.arrays.after_pair[:, NUM_AND_LEVEL])
    pairs = [(int(store.arrays.after_pair[row, BEFORE]), _check_record(store.arrays.after_pair[row])) for row in rows]
    assert len(set(pairs)) == len(pairs), "A pair is stored twice."
    for row, pair in zip(rows.tolist(), pairs, strict=True):
        assert 0 <= row - set_of(store.arrays.after_pair, *pair) < WAYS, f"{pair} is in another pair's set."


def _check_record(record: Int32Array) -> int:
    """The token whose successors it has."""
    named = named_tokens(record)
    probabilities = [p for _, p in named]
    assert len({token_id for token_id, _ in named}) == len(named), f"{named} has a token twice."
    assert probabilities == sorted(probabilities, reverse=True), f"{named} is not sorted."
    assert sum(probabilities) <= 1.0001, f"{named} is more than certain."
    return int(record[TOKEN])


def text_ends(history: History) -> list[int]:
    """Each text's position after its last token, in the order of `History.texts`."""
    return [text.end for text in history._texts]


def _check_row(store: CountStore, suffix: tuple[int, ...], expected: Successors, is_whole: bool) -> None:
    """is_whole: what followed the suffix never filled a row."""
    found = successors_of(store, suffix)
    mask = len(store.text) - 1
    assert len(found) == len(expected) or not is_whole, f"{suffix} lost tokens."
    for token, (count, position) in found.items():
        assert token in expected, f"{suffix} is followed by {token}, which it never was."
        assert position == expected[token][1] & mask, f"{suffix}, {token}: last at {position}."
        assert 1 <= count <= expected[token][0], f"{suffix}, {token}: counted {count} times, not {expected[token][0]}."


def _check_table(store: CountStore) -> list[int]:
    """Rows that keys lead to."""
    keys = store.arrays.table[store.arrays.table[:, 0] != 0]
    assert len(keys) == store.arrays.header[NUM_KEYS]
    assert len(np.unique(keys[:, 0])) == len(keys), "A key is stored twice."
    return [int(value) for value in keys[:, 1] if not value & SINGLE_MARK]


def _check_positions(store: CountStore, used: list[int], texts: Sequence[Sequence[int]], ends: Sequence[int]) -> None:
    """Whatever is stored points to a token that is still remembered."""
    mask = len(store.text) - 1
    live = {(end - len(t) + i) & mask: token for t, end in zip(texts, ends, strict=True) for i, token in enumerate(t)}
    values = store.arrays.table[store.arrays.table[:, 0] != 0][:, 1].tolist()
    stored = [(value >> 32, value & (SINGLE_MARK - 1)) for value in values if value & SINGLE_MARK]
    for row in [ORDER_0_ROW, *used]:
        stored += [(token, position) for token, _, position in entries(store, row)]
    for token, position in stored:
        assert live.get(position) == token, f"Token {token} at {position} is stale."


def _check_blocks(store: CountStore, used: list[int]) -> None:
    """Every block is in one row or is free."""
    seen: set[int] = {0}
    for start in [ORDER_0_ROW, *used, int(store.arrays.header[FREE_BLOCK])]:
        block = start
        while block:
            assert block not in seen, f"Block {block} is in use twice."
            seen.add(block)
            block = int(store.arrays.rows[block * BLOCK])
    assert seen == set(range(int(store.arrays.header[NEXT_BLOCK])))
    for row in [ORDER_0_ROW, *used]:
        counts = [count for _, count, _ in entries(store, row)]
        assert counts == sorted(counts, reverse=True), f"Row {row} is not sorted."
    num_free, block = 0, int(store.arrays.header[FREE_BLOCK])
    while block:
        num_free, block = num_free + 1, int(store.arrays.rows[block * BLOCK])
    assert store.arrays.header[NUM_BLOCKS] == store.arrays.header[NEXT_BLOCK] - num_free
