"""What datastores say about the token after a path, and how the match moves along when the path grows."""

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Int32Array, Int64Array, Number
from reader_edge_runtime.drafting.kernels.counts import ORDER
from reader_edge_runtime.drafting.kernels.datastore import MAX_GATHERED, Files, find, narrow, successors
from reader_edge_runtime.drafting.kernels.datastore import STATE as MATCH
from reader_edge_runtime.drafting.kernels.jit import part, small_part
from reader_edge_runtime.drafting.kernels.layout import (
    COUNT_CLASS,
    DATASTORE_INPUTS,
    DATASTORE_STATE,
    GATHERED,
    MAX_LENGTH,
    MAX_TOTAL,
    SET_LEVEL,
)
from reader_edge_runtime.drafting.kernels.voices import add_pair, add_speaker

_MAX_NAMED = 8
# One token alone has too many successors to be worth their look-up.
_MIN_LENGTH = 2
_LONG_MATCH = 4


@part
def add_datastore(files: Files, layouts: Int64Array, node: Int32Array, evidence: Int32Array, work: Int32Array) -> None:
    """Add what followed the node's match."""
    if layouts.shape[0] == 0 or node[DATASTORE_STATE] < _MIN_LENGTH:
        return
    match = node[DATASTORE_STATE : DATASTORE_STATE + MATCH]
    token_ids = work[GATHERED : GATHERED + MAX_GATHERED]
    counts = work[GATHERED + MAX_GATHERED : GATHERED + 2 * MAX_GATHERED]
    num = successors(files, layouts, match, _MAX_NAMED, token_ids, counts)
    total = np.int64(0)
    for f in range(layouts.shape[0]):
        total += match[2 + 2 * f] - match[1 + 2 * f]
    if num == 0:
        return
    shift = 0
    while (total >> shift) > MAX_TOTAL:
        shift += 1
    total >>= shift
    is_long = 1 if match[0] >= _LONG_MATCH else 0
    level = SET_LEVEL[min(match[0], MAX_LENGTH)]
    speaker = add_speaker(evidence, DATASTORE_INPUTS, level, COUNT_CLASS[total, 0] + is_long)
    for i in range(num):
        count: Number = min(max(np.int64(counts[i]) >> shift, 1), total)
        add_pair(evidence, work, speaker, DATASTORE_INPUTS, COUNT_CLASS[total, count] + is_long, token_ids[i])


@small_part
def advance_datastore(files: Files, layouts: Int64Array, node: Int32Array, token: Number, max_found: int) -> None:
    """Move the match on to `token`, which the node's path ends with by now."""
    if layouts.shape[0] == 0:
        return
    _advance(files, layouts, node, token, max_found)


@part
def _advance(files: Files, layouts: Int64Array, node: Int32Array, token: Number, max_found: int) -> None:
    match = node[DATASTORE_STATE : DATASTORE_STATE + MATCH]
    if match[0] > 0 and narrow(files, layouts, match, token, match) > 0:
        return
    match[0] = 0
    if max_found:
        _find(files, layouts, node, max_found)


@small_part
def find_anew(files: Files, layouts: Int64Array, node: Int32Array) -> None:
    """Look for the path's end where the match ended on the way."""
    if layouts.shape[0] and node[DATASTORE_STATE] == 0:
        _find(files, layouts, node, ORDER)


@part
def _find(files: Files, layouts: Int64Array, node: Int32Array, max_length: int) -> None:
    length = 0
    while length < max_length and node[length] >= 0:
        length += 1
    oldest_first = node[:length][::-1]
    find(files, layouts, oldest_first, length, node[DATASTORE_STATE : DATASTORE_STATE + MATCH])
