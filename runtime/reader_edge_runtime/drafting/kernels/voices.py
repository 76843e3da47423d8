"""How inputs speak: each names tokens with classes, which become candidates and pairs in the evidence."""

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Int32Array, Number
from reader_edge_runtime.drafting.kernels.jit import small_part
from reader_edge_runtime.drafting.kernels.layout import (
    CANDIDATES,
    CLASSES,
    LEVELS,
    MAX_CANDIDATES,
    MAX_PAIRS,
    MISS,
    NUM_CANDIDATES,
    NUM_PAIRS,
    NUM_PLACES,
    NUM_SPEAKING,
    PAIR_CANDIDATE,
    PAIR_CLASS,
    PAIR_SPEAKER,
    PLACES,
    SPEAKING,
    WEIGHT,
)


@small_part
def _candidate(evidence: Int32Array, token: Number) -> Number:
    """Number of a candidate token, -1 when there is no room for one more."""
    place = (token * 31) & (NUM_PLACES - 1)
    while evidence[PLACES + place] >= 0:
        number = evidence[PLACES + place]
        if evidence[CANDIDATES + number] == token:
            return np.int64(number)
        place = (place + 1) & (NUM_PLACES - 1)
    number = evidence[NUM_CANDIDATES]
    if number == MAX_CANDIDATES:
        return np.int64(-1)
    evidence[PLACES + place] = number
    evidence[CANDIDATES + number] = token
    evidence[NUM_CANDIDATES] = number + 1
    return np.int64(number)


@small_part
def add_speaker(evidence: Int32Array, which: Number, level: Number, miss: Number) -> Number:
    speaker = np.int64(evidence[NUM_SPEAKING])
    evidence[NUM_SPEAKING] = speaker + 1
    evidence[SPEAKING + speaker] = which
    evidence[WEIGHT + speaker] = which * LEVELS + level
    evidence[MISS + speaker] = which * CLASSES + miss
    return speaker


@small_part
def add_pair(evidence: Int32Array, speaker: Number, which: Number, number: Number, token: Number) -> None:
    """A speaker names a token, with the class `number` of its input."""
    pair = evidence[NUM_PAIRS]
    if pair == MAX_PAIRS:
        return
    candidate = _candidate(evidence, token)
    if candidate >= 0:
        evidence[PAIR_SPEAKER + pair] = speaker
        evidence[PAIR_CLASS + pair] = which * CLASSES + number
        evidence[PAIR_CANDIDATE + pair] = candidate
        evidence[NUM_PAIRS] = pair + 1


@small_part
def add_one(evidence: Int32Array, which: Number, level: Number, number: Number, token: Number) -> None:
    """An input that names one token: class 2 * number for the others, the next one for it."""
    speaker = add_speaker(evidence, which, level, number * 2)
    add_pair(evidence, speaker, which, number * 2 + 1, token)
