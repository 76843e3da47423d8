"""Writing evidence down: who speaks about the next token, which tokens it names, and in which class."""

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Int32Array, Number
from reader_edge_runtime.drafting.kernels.jit import part, small_part
from reader_edge_runtime.drafting.kernels.layout import (
    CANDIDATES,
    CLASS_SHIFT,
    CLASSES,
    COUNT_CLASS,
    LEVEL_OF_TOTAL,
    LEVELS,
    MAX_CANDIDATES,
    MAX_NAMED,
    MAX_PAIRS,
    MAX_TOTAL,
    MISS,
    NUM_CANDIDATES,
    NUM_PAIRS,
    NUM_PLACES,
    NUM_SPEAKING,
    PAIRS,
    PLACES,
    SPEAKER_SHIFT,
    WEIGHT,
)
from reader_edge_runtime.drafting.kernels.rows import BLOCK, next_entry


@small_part
def _candidate(evidence: Int32Array, work: Int32Array, token: Number) -> Number:
    """Number of a candidate token, -1 when there is no room for one more."""
    place = (token * 31) & (NUM_PLACES - 1)
    while work[PLACES + place] >= 0:
        number = work[PLACES + place]
        if evidence[CANDIDATES + number] == token:
            return np.int64(number)
        place = (place + 1) & (NUM_PLACES - 1)
    number = evidence[NUM_CANDIDATES]
    if number == MAX_CANDIDATES:
        return np.int64(-1)
    work[PLACES + place] = number
    evidence[CANDIDATES + number] = token
    evidence[NUM_CANDIDATES] = number + 1
    return np.int64(number)


@small_part
def add_speaker(evidence: Int32Array, which: Number, level: Number, miss: Number) -> Number:
    speaker = np.int64(evidence[NUM_SPEAKING])
    evidence[NUM_SPEAKING] = speaker + 1
    evidence[WEIGHT + speaker] = which * LEVELS + level
    evidence[MISS + speaker] = which * CLASSES + miss
    return speaker


@small_part
def add_pair(
    evidence: Int32Array, work: Int32Array, speaker: Number, which: Number, number: Number, token: Number
) -> None:
    """A speaker names a token, with the class `number` of its input."""
    pair = evidence[NUM_PAIRS]
    if pair == MAX_PAIRS:
        return
    candidate = _candidate(evidence, work, token)
    if candidate >= 0:
        named = np.int64(which * CLASSES + number) << CLASS_SHIFT
        evidence[PAIRS + pair] = named | (speaker << SPEAKER_SHIFT) | candidate
        evidence[NUM_PAIRS] = pair + 1


@small_part
def add_one(
    evidence: Int32Array, work: Int32Array, which: Number, level: Number, number: Number, token: Number
) -> None:
    """An input that names one token: class 2 * number for the others, the next one for it."""
    speaker = add_speaker(evidence, which, level, number * 2)
    add_pair(evidence, work, speaker, which, number * 2 + 1, token)


@part
def add_row(
    evidence: Int32Array, work: Int32Array, rows: Int32Array, row: Number, order: Number, which: Number
) -> None:
    base = np.int64(row) * BLOCK
    total = np.int64(rows[base + 1])
    shift = 0
    while (total >> shift) > MAX_TOTAL:
        shift += 1
    total >>= shift
    speaker = add_speaker(evidence, which, LEVEL_OF_TOTAL[total], COUNT_CLASS[total, 0])
    last = rows[base + 3]
    entry = np.int64(base + 4)
    for _ in range(min(rows[base + 2], MAX_NAMED[order])):
        count: Number = min(max(np.int64(rows[entry + 1]) >> shift, 1), total)
        came_last = 1 if rows[entry + 2] == last else 0
        add_pair(evidence, work, speaker, which, COUNT_CLASS[total, count] + came_last, rows[entry])
        entry = np.int64(next_entry(rows, entry))
