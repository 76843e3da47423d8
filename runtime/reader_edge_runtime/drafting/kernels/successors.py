"""The target's best successors, as they were when a token, or a pair of tokens, was last scored.

Records are rows of int32 (RECORD,), one cache line: the token before the key, the key's last token, how many tokens are
named and the record's level, one more token further back, then the named tokens, best first, then their classes, two
in a number.
    after_token  (T, RECORD): row t is that of token t; grown by the caller
    after_pair   (P, RECORD), P a power of two: sets of WAYS rows, the newest first; what a full set drops is its oldest
The whole pair is stored with its record, so that none is ever taken for another's.

Classes: 0..LEVELS - 1 for tokens that a record of that level does not name; then by rank and probability, twice: with
and without "the token further back is the same too".
"""

import math

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Float32Array, Int32Array, Int64Array, Number
from reader_edge_runtime.drafting.kernels.jit import kernel, part, small_part
from reader_edge_runtime.drafting.kernels.layout import LEVELS

MAX_SUCCESSORS = 8
RECORD = 16
BEFORE, TOKEN, NUM_AND_LEVEL, FURTHER, NAMED = range(5)
CLASS_WORDS = NAMED + MAX_SUCCESSORS
WAYS = 4

# How many tokens before the root of a tree make a difference.
NUM_BEFORE = 2

# Of the successors' log-odds; what is less likely than the lowest is not recorded.
LOG_ODDS_BUCKETS = 16
LOWEST_LOG_ODDS = -6.4
LOG_ODDS_STEP = 0.8
RANK_BUCKET = np.array([0, 1, 2, 3, 4, 4, 5, 5], np.int32)
NUM_RANKS = 6
FIRST_NAMED_CLASS = LEVELS

_LOWEST_P = np.float32(1 / (1 + math.exp(-LOWEST_LOG_ODDS)))
# Probability of the best successor, below which a record is of each level.
_LEVEL_EDGES = np.array([0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95], np.float32)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_S32 = np.uint64(32)


@small_part
def named_class(rank: Number, bucket: Number, is_same_further_back: Number) -> Number:
    return FIRST_NAMED_CLASS + 2 * (RANK_BUCKET[rank] * LOG_ODDS_BUCKETS + bucket) + is_same_further_back


@small_part
def _set_of(after_pair: Int32Array, before: Number, token: Number) -> Number:
    """First row of the set that a pair belongs to."""
    x = (np.uint64(before + 1) << _S32) ^ np.uint64(token + 1)
    x = x * _MULTIPLIER
    x = (x ^ (x >> _S32)) * _MULTIPLIER
    return np.int64(x >> _S32) & (after_pair.shape[0] - 1) & -WAYS


@small_part
def find_pair(after_pair: Int32Array, before: Number, token: Number) -> Number:
    """Row of a pair's record, -1 where there is none."""
    first = _set_of(after_pair, before, token)
    for row in range(first, first + WAYS):
        if after_pair[row, TOKEN] == token and after_pair[row, BEFORE] == before and after_pair[row, NUM_AND_LEVEL]:
            return row
    return np.int64(-1)


@small_part
def _renew_pair(after_pair: Int32Array, before: Number, token: Number) -> Number:
    """Row for a pair's new record: the first of its set, where the others have moved down."""
    first = _set_of(after_pair, before, token)
    row = find_pair(after_pair, before, token)
    if row < 0:
        row = first + WAYS - 1
    while row > first:
        for i in range(RECORD):
            after_pair[row, i] = after_pair[row - 1, i]
        row -= 1
    return first


@part
def _write(record: Int32Array, top_ids: Int64Array, top_logits: Float32Array) -> None:
    """Fill in what a record names."""
    num = min(top_ids.shape[0], MAX_SUCCESSORS)
    total = np.float32(0)
    for i in range(num):
        total += np.float32(math.exp(top_logits[i] - top_logits[0]))
    best = np.float32(1) / total
    level = 0
    while level < LEVELS - 1 and best >= _LEVEL_EDGES[level]:
        level += 1
    for i in range(CLASS_WORDS, RECORD):
        record[i] = 0
    named = 0
    while named < num:
        p = np.float32(math.exp(top_logits[named] - top_logits[0])) / total
        if not p > _LOWEST_P:
            break
        log_odds = math.log(p / max(np.float32(1) - p, np.float32(1e-6)))
        bucket = min(max(np.int64((log_odds - LOWEST_LOG_ODDS) / LOG_ODDS_STEP), 0), LOG_ODDS_BUCKETS - 1)
        record[NAMED + named] = top_ids[named]
        record[CLASS_WORDS + (named >> 1)] |= named_class(named, bucket, 0) << (16 * (named & 1))
        named += 1
    record[NUM_AND_LEVEL] = named * LEVELS + level


@kernel
def learn(
    token_ids: Int64Array,
    parents: Int64Array,
    before_ids: Int64Array,
    first: Number,
    top_ids: Int64Array,
    top_logits: Float32Array,
    after_token: Int32Array,
    after_pair: Int32Array,
) -> int:
    """Record what the target said of a tree's nodes `first` and on, one row of top_ids and top_logits each.

    before_ids: (NUM_BEFORE,), tokens before the root, newest first, -1 where the text starts.
    Returns how many rows were learned: fewer than there are where a token has no row in `after_token`.
    """
    for i in range(top_ids.shape[0]):
        node = first + i
        token = token_ids[node]
        if token >= after_token.shape[0]:
            return i
        above = parents[node]
        before = token_ids[above] if above >= 0 else before_ids[0]
        further = before_ids[1]
        if above >= 0:
            further = token_ids[parents[above]] if parents[above] >= 0 else before_ids[0]
        record = after_token[token]
        _write(record, top_ids[i], top_logits[i])
        record[BEFORE], record[TOKEN], record[FURTHER] = before, token, further
        if before >= 0 and after_pair.shape[0] and record[NUM_AND_LEVEL] >= LEVELS:
            row = _renew_pair(after_pair, before, token)
            for j in range(RECORD):
                after_pair[row, j] = record[j]
    return top_ids.shape[0]
