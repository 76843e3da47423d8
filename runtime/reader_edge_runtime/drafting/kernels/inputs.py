"""Inputs of the mixture model at a tree node: which tokens each source predicts, in which class of evidence."""

import numpy as np

from reader_edge_runtime.drafting.kernels import layout
from reader_edge_runtime.drafting.kernels.arrays import Int32Vector, Number
from reader_edge_runtime.drafting.kernels.kernel import part, small_part
from reader_edge_runtime.drafting.kernels.rows import BLOCK, next_entry


@small_part
def _candidate(evidence: Int32Vector, work: Int32Vector, token: Number) -> Number:
    """The number of a candidate token, -1 if there is no room for a new one."""
    place = (token * 31) & (layout.NUM_PLACES - 1)
    while work[layout.PLACES + place] >= 0:
        number = work[layout.PLACES + place]
        if evidence[layout.CANDIDATES + number] == token:
            return np.int64(number)
        place = (place + 1) & (layout.NUM_PLACES - 1)
    number = evidence[layout.NUM_CANDIDATES]
    if number == layout.MAX_CANDIDATES:
        return np.int64(-1)
    work[layout.PLACES + place] = number
    evidence[layout.CANDIDATES + number] = token
    evidence[layout.NUM_CANDIDATES] = number + 1
    return np.int64(number)


@small_part
def add_input(evidence: Int32Vector, which: Number, level: Number, miss: Number) -> Number:
    active = np.int64(evidence[layout.NUM_ACTIVE])
    evidence[layout.NUM_ACTIVE] = active + 1
    evidence[layout.WEIGHT + active] = which * layout.LEVELS + level
    evidence[layout.MISS + active] = which * layout.CLASSES + miss
    return active


@small_part
def add_pair(
    evidence: Int32Vector, work: Int32Vector, active: Number, which: Number, number: Number, token: Number
) -> None:
    """Let an active input name a token in class `number` of its input."""
    pair = evidence[layout.NUM_PAIRS]
    if pair == layout.MAX_PAIRS:
        return
    candidate = _candidate(evidence, work, token)
    if candidate >= 0:
        named = np.int64(which * layout.CLASSES + number) << layout.CLASS_SHIFT
        evidence[layout.PAIRS + pair] = named | (active << layout.ACTIVE_SHIFT) | candidate
        evidence[layout.NUM_PAIRS] = pair + 1


@small_part
def add_one(
    evidence: Int32Vector, work: Int32Vector, which: Number, level: Number, number: Number, token: Number
) -> None:
    """Add an input that names one token: in class 2 * number + 1, all others in 2 * number."""
    active = add_input(evidence, which, level, number * 2)
    add_pair(evidence, work, active, which, number * 2 + 1, token)


@part
def add_row(
    evidence: Int32Vector, work: Int32Vector, rows: Int32Vector, row: Number, order: Number, which: Number
) -> None:
    base = np.int64(row) * BLOCK
    total = np.int64(rows[base + 1])
    shift = 0
    while (total >> shift) > layout.MAX_TOTAL:
        shift += 1
    total >>= shift
    active = add_input(evidence, which, layout.LEVEL_OF_TOTAL[total], layout.COUNT_CLASS[total, 0])
    last = rows[base + 3]
    entry = np.int64(base + 4)
    for _ in range(min(rows[base + 2], layout.MAX_NAMED[order])):
        count: Number = min(max(np.int64(rows[entry + 1]) >> shift, 1), total)
        came_last = 1 if rows[entry + 2] == last else 0
        add_pair(evidence, work, active, which, layout.COUNT_CLASS[total, count] + came_last, rows[entry])
        entry = np.int64(next_entry(rows, entry))
