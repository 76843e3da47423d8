"""Where the text's suffix occurs in one n-gram store, what that says of the next token, and how the match grows on."""

import numpy as np

from reader_edge_runtime.drafting.kernels import layout
from reader_edge_runtime.drafting.kernels.arrays import Int32Vector, Number, Store
from reader_edge_runtime.drafting.kernels.counts import (
    HASH_START,
    ORDER,
    find,
    hash_key,
    hash_push,
    is_single,
    single_position,
    single_token,
)
from reader_edge_runtime.drafting.kernels.inputs import add_one, add_row
from reader_edge_runtime.drafting.kernels.kernel import part, small_part
from reader_edge_runtime.drafting.kernels.rows import BLOCK, ORDER_0_ROW, TEXT_MASK


@part
def _find_rows(store: Store, node: Int32Vector, work: Int32Vector) -> tuple[Number, Number, Number, Number]:
    """Write the rows of all orders that match into `work`.

    Returns their number, the single after them or 0, the longest match and the position of the token after it.
    """
    rows, text = store.rows, store.text
    mask = store.header[TEXT_MASK]
    state = HASH_START
    single, longest, position = np.int64(0), np.int64(0), np.int64(-1)
    if rows[BLOCK * ORDER_0_ROW + 1] == 0:
        return np.int64(0), single, longest, position
    work[layout.ROWS_FOUND] = ORDER_0_ROW
    while longest < ORDER and node[longest] >= 0:
        state = hash_push(state, node[longest])
        i = find(store.header, store.table, hash_key(state))
        if i < 0:
            break
        longest += 1
        value = store.table[i, 1]
        if is_single(value):
            num_rows = longest
            single = value
            position = single_position(value)
            while longest < ORDER and node[longest] >= 0 and text[(position - longest - 1) & mask] == node[longest]:
                longest += 1
            return num_rows, single, longest, position
        work[layout.ROWS_FOUND + longest] = value
        position = np.int64(rows[value * BLOCK + 3])
    return longest + 1, single, longest, position


@part
def gather_store(
    store: Store, node: Int32Vector, at: Number, first_input: Number, evidence: Int32Vector, work: Int32Vector
) -> Number:
    """Add a store's inputs; `at` is its place in the node's state. Returns the length of its longest match."""
    num_rows, single, longest, position = _find_rows(store, node, work)
    if longest > 0 and (node[at] < 0 or longest > node[at + 1]):
        node[at] = position
        node[at + 1] = longest
    _add_copies(store, node, at, first_input, evidence, work)
    if single != 0:
        add_one(evidence, work, first_input + layout.SINGLE, longest - 1, longest, np.int32(single_token(single)))
    _note_kind(store.rows, node, at, single, longest, work)
    for order in range(num_rows - 1, -1, -1):
        add_row(evidence, work, store.rows, work[layout.ROWS_FOUND + order], order, first_input + order)
    return max(longest, np.int64(node[at + 1]))


@small_part
def _add_copies(
    store: Store, node: Int32Vector, at: Number, first_input: Number, evidence: Int32Vector, work: Int32Vector
) -> None:
    text, mask = store.text, store.header[TEXT_MASK]
    if node[at] >= 0:
        token = text[node[at] & mask]
        if token < 0:
            node[at] = -1
            node[at + 1] = 0
        else:
            bucket = layout.LENGTH_BUCKET[min(node[at + 1], layout.MAX_LENGTH)]
            add_one(evidence, work, first_input + layout.COPY, bucket >> 1, bucket, token)
    if node[at + 2] >= 0 and node[at + 2] != node[at]:
        token = text[node[at + 2] & mask]
        if token < 0:
            node[at + 2] = -1
        else:
            add_one(evidence, work, first_input + layout.RESUMED, node[at + 3] & 7, node[at + 3], token)


@small_part
def _note_kind(
    rows: Int32Vector, node: Int32Vector, at: Number, single: Number, longest: Number, work: Int32Vector
) -> None:
    """Note whether the longest match names no token, one or several, and the first of them."""
    work[layout.KIND] = 0
    work[layout.TOP] = -1
    if single != 0:
        work[layout.KIND] = 1
        work[layout.TOP] = single_token(single)
    elif longest > 0:
        base = np.int64(work[layout.ROWS_FOUND + longest]) * BLOCK
        work[layout.KIND] = 1 if rows[base + 2] == 1 else 2
        work[layout.TOP] = rows[base + 4]
    if node[at + 2] >= 0:
        work[layout.KIND] += 3


@part
def _found_near(
    text: Int32Vector, mask: Number, node: Int32Vector, place: Number, token: Number
) -> tuple[Number, Number]:
    """Where `token`, which is not the one at `place`, stands near it: the longest match with what came before, then the
    first, and how many tokens match, four at most. The place itself and 0 if it stands nowhere: it took the other's.
    """
    found, most = np.int64(place), np.int64(0)
    for offset in range(-layout.NEAR_BEHIND, layout.NEAR_AHEAD):
        near = (np.int64(place) + offset) & mask
        if text[near] == token:
            length = np.int64(1)
            while length < 4 and text[(near - length) & mask] == node[length - 1]:
                length += 1
            if length > most:
                found, most = near, length
        elif text[near] < 0 and offset > 0:
            break
    return found, most


@small_part
def advance_store(store: Store, node: Int32Vector, at: Number, token: Number) -> None:
    text, mask = store.text, store.header[TEXT_MASK]
    resumed = node[at + 2]
    if resumed >= 0:
        hits, differences = node[at + 3] & 7, node[at + 3] >> 3
        if text[resumed & mask] == token:
            hits = min(hits + 1, 7)
        else:
            resumed, hits = _found_near(text, mask, node, resumed, token)
            differences += 1
        node[at + 2] = (resumed + 1) & mask if differences <= layout.MAX_DIFFERENCES else -1
        node[at + 3] = differences * 8 + hits
    copy = node[at]
    if copy >= 0:
        if text[copy & mask] == token:
            node[at] = (copy + 1) & mask
            node[at + 1] += 1
            return
        if node[at + 1] >= layout.MIN_RESUMED:
            copy, hits = _found_near(text, mask, node, copy, token)
            node[at + 2] = (copy + 1) & mask
            node[at + 3] = 8 + hits
        node[at] = -1
        node[at + 1] = 0
