"""Records of the tokens that the target found most likely after a token, and after a pair of tokens.

A record is int32 (RECORD,), one cache line: the token before the last, the last token, number of successors * LEVELS +
level, the token before both; then the successors, best first, and their probabilities in 65536ths, two to a number.
When its key is scored again, a record's probabilities move towards the new ones.
    after_token  (T, RECORD): row t is of token t; grown by the caller
    after_pair   (P, RECORD), P a power of two: sets of WAYS rows, newest first; a full set drops its oldest

Classes: 0..LEVELS - 1 for tokens that a record of this level does not name; then buckets of rank and probability, in
turn for another token further back and for the same one.
"""

import math
from typing import NamedTuple

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import (
    Float32Table,
    Float32Vector,
    Int32Table,
    Int32Vector,
    Int64Table,
    Int64Vector,
    Number,
    SuccessorRecords,
)
from reader_edge_runtime.drafting.kernels.inputs import add_input, add_pair
from reader_edge_runtime.drafting.kernels.kernel import kernel, part, small_part
from reader_edge_runtime.drafting.kernels.layout import AFTER_PAIR, AFTER_TOKEN, LEVELS, LOGITS_INPUTS

MAX_SUCCESSORS = 8
RECORD = 16
BEFORE, TOKEN, NUM_AND_LEVEL, FURTHER, NAMED = range(5)
NUMBERS = NAMED + MAX_SUCCESSORS
WAYS = 4

# Buckets of log-odds; less likely successors than the lowest are not recorded.
LOG_ODDS_BUCKETS = 16
LOWEST_LOG_ODDS = -6.4
LOG_ODDS_STEP = 0.8
RANK_BUCKET = np.array([0, 1, 2, 3, 4, 4, 5, 5], np.int32)
NUM_RANKS = 6
FIRST_NAMED_CLASS = LEVELS

LOWEST_P = np.float32(1 / (1 + math.exp(-LOWEST_LOG_ODDS)))
# A record's level is the number of these that its best successor's probability reaches.
LEVEL_EDGES = np.array([0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95], np.float32)
# How far a record moves towards new probabilities.
TOKEN_SHARE = np.float32(0.3)
PAIR_SHARE = np.float32(0.5)

# The bucket of each probability in 4096ths.
_p = (np.arange(4096) + 0.5) / 4096
_BUCKET = np.clip((np.log(_p / (1 - _p)) - LOWEST_LOG_ODDS) / LOG_ODDS_STEP, 0, LOG_ODDS_BUCKETS - 1).astype(np.int32)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_S32 = np.uint64(32)


class SuccessorBuffers(NamedTuple):
    """Working memory, (2 * MAX_SUCCESSORS,) each."""

    token_ids: Int64Vector
    probabilities: Float32Vector


@small_part
def set_of(after_pair: Int32Table, before: Number, token: Number) -> Number:
    """The first row of a pair's set."""
    x = (np.uint64(before + 1) << _S32) ^ np.uint64(token + 1)
    x = x * _MULTIPLIER
    x = (x ^ (x >> _S32)) * _MULTIPLIER
    return np.int64(x >> _S32) & (after_pair.shape[0] - 1) & -WAYS


@small_part
def find_pair(after_pair: Int32Table, before: Number, token: Number) -> Number:
    """The row of a pair's record, or -1."""
    first = set_of(after_pair, before, token)
    for row in range(first, first + WAYS):
        if after_pair[row, TOKEN] == token and after_pair[row, BEFORE] == before and after_pair[row, NUM_AND_LEVEL]:
            return row
    return np.int64(-1)


@part
def _renew_pair(after_pair: Int32Table, before: Number, token: Number) -> Number:
    """Move a pair's record, or an empty one, to the front of its set. Returns its row."""
    first = set_of(after_pair, before, token)
    row = find_pair(after_pair, before, token)
    if row < 0:
        row = first + WAYS - 1
        after_pair[row] = 0
    for i in range(RECORD):
        number = after_pair[row, i]
        for j in range(row, first, -1):
            after_pair[j, i] = after_pair[j - 1, i]
        after_pair[first, i] = number
    return first


@part
def _merge(
    record: Int32Vector,
    top_ids: Int64Vector,
    top_logits: Float32Vector,
    share: Number,
    work: SuccessorBuffers,
) -> None:
    """Move a record by `share` towards the target's new probabilities; an empty record takes them as they are."""
    token_ids, probabilities = work
    num_old = np.int64(record[NUM_AND_LEVEL]) // LEVELS
    if num_old == 0:
        share = np.float32(1)
    for i in range(num_old):
        token_ids[i] = record[NAMED + i]
        probabilities[i] = (np.float32(1) - share) * _probability(record, i)
    num: Number = num_old
    num_new = min(top_ids.shape[0], MAX_SUCCESSORS)
    total = np.float32(0)
    for i in range(num_new):
        total += np.float32(math.exp(top_logits[i] - top_logits[0]))
    for i in range(num_new):
        p = share * np.float32(math.exp(top_logits[i] - top_logits[0])) / total
        j = 0
        while j < num_old and token_ids[j] != top_ids[i]:
            j += 1
        if j == num_old:
            j = num
            num += 1
            token_ids[j] = top_ids[i]
            probabilities[j] = np.float32(0)
        probabilities[j] += p
    _write(record, token_ids, probabilities, num)


@small_part
def _write(record: Int32Vector, token_ids: Int64Vector, probabilities: Float32Vector, num: Number) -> None:
    """Store the most likely tokens in a record, best first."""
    for i in range(NUMBERS, RECORD):
        record[i] = 0
    named = 0
    level = 0
    while named < MAX_SUCCESSORS:
        best = 0
        for i in range(1, num):
            if probabilities[i] > probabilities[best]:
                best = i
        p = probabilities[best] if num else np.float32(0)
        if not p > LOWEST_P:
            break
        if named == 0:
            while level < LEVELS - 1 and p >= LEVEL_EDGES[level]:
                level += 1
        record[NAMED + named] = token_ids[best]
        number: Number = min(np.int64(p * np.float32(65536)), 65535)
        record[NUMBERS + (named >> 1)] |= number << (16 * (named & 1))
        probabilities[best] = np.float32(-1)
        named += 1
    record[NUM_AND_LEVEL] = named * LEVELS + level


@small_part
def _number(record: Int32Vector, rank: Number) -> Number:
    return (np.int64(record[NUMBERS + (rank >> 1)]) >> (16 * (rank & 1))) & 0xFFFF


@small_part
def _probability(record: Int32Vector, rank: Number) -> Number:
    return np.float32(_number(record, rank)) / np.float32(65536)


@small_part
def class_of(record: Int32Vector, rank: Number, is_same_further_back: Number) -> Number:
    """The class of a record's successor of this rank."""
    bucket = RANK_BUCKET[rank] * LOG_ODDS_BUCKETS + _BUCKET[_number(record, rank) >> 4]
    return FIRST_NAMED_CLASS + 2 * bucket + is_same_further_back


@part
def add_successors(successors: SuccessorRecords, node: Int32Vector, evidence: Int32Vector, work: Int32Vector) -> None:
    """Add the records of the path's last pair and of its last token."""
    after_token, after_pair = successors.after_token, successors.after_pair
    if node[1] >= 0:
        row = find_pair(after_pair, node[1], node[0])
        if row >= 0:
            _add_record(
                after_pair[row], LOGITS_INPUTS + AFTER_PAIR, after_pair[row, FURTHER] == node[2], evidence, work
            )
    if node[0] < after_token.shape[0]:
        record = after_token[node[0]]
        if record[NUM_AND_LEVEL] >= LEVELS:
            _add_record(record, LOGITS_INPUTS + AFTER_TOKEN, record[BEFORE] == node[1], evidence, work)


@small_part
def _add_record(
    record: Int32Vector, which: Number, is_same_further_back: Number, evidence: Int32Vector, work: Int32Vector
) -> None:
    level = record[NUM_AND_LEVEL] & (LEVELS - 1)
    active = add_input(evidence, which, level, level)
    for i in range(record[NUM_AND_LEVEL] // LEVELS):
        add_pair(evidence, work, active, which, class_of(record, i, is_same_further_back), record[NAMED + i])


@kernel
def learn(
    store: SuccessorRecords,
    work: SuccessorBuffers,
    nodes: Int64Table,
    first: Number,
    before_root: Number,
    further_before: Number,
    top_ids: Int64Table,
    top_logits: Float32Table,
) -> int:
    """Record the target's best successors of a tree's nodes from `first` on, a row of top_ids and top_logits each.

    nodes: (2, N), token ids and parents. before_root, further_before: the tokens before the root, -1 before the text.
    Returns how many rows were learned: it stops at a token that has no row in `after_token`.
    """
    after_token, after_pair = store
    token_ids, parents = nodes[0], nodes[1]
    for i in range(top_ids.shape[0]):
        node = first + i
        token = token_ids[node]
        if token >= after_token.shape[0]:
            return i
        above = parents[node]
        before = token_ids[above] if above >= 0 else before_root
        further = further_before
        if above >= 0:
            further = token_ids[parents[above]] if parents[above] >= 0 else before_root
        record = after_token[token]
        _merge(record, top_ids[i], top_logits[i], TOKEN_SHARE, work)
        record[BEFORE], record[TOKEN], record[FURTHER] = before, token, further
        if before >= 0 and after_pair.shape[0]:
            record = after_pair[_renew_pair(after_pair, before, token)]
            _merge(record, top_ids[i], top_logits[i], PAIR_SHARE, work)
            record[BEFORE], record[TOKEN], record[FURTHER] = before, token, further
    return top_ids.shape[0]
