"""Look-ups in datastores: where a path's last tokens occur in a corpus, and what followed them.

A datastore is one uint32 array of its whole file, mapped into memory. Its layout, int64 (LAYOUT,), says where its parts
are; token ids of two bytes are packed two to a word, so that the kernels serve both widths. Up to MAX_FILES files are
searched as if they were one.

The state of a match, int32 (STATE,): its length, then for each file the interval [lo, hi) of suffixes that start with
the matched tokens. Files may be hostile: look-ups always end, stay within the arrays and return only known tokens.
"""

from typing import NamedTuple

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Int32Vector, Int64Table, Int64Vector, Number, UInt32Vector
from reader_edge_runtime.drafting.kernels.kernel import kernel, part, small_part
from reader_edge_runtime.drafting.sources.datastore.header import KEY_STEP, MAX_FILES

STATE = 1 + 2 * MAX_FILES

# Offsets are in words of the file. NUM_POSITIONS: tokens and document ends together.
TOKENS, NUM_POSITIONS, IS_WIDE, SUFFIXES, NUM_SUFFIXES, KEYS, VOCAB_SIZE = range(7)
LAYOUT = 7

# The token id read outside a file: above all others.
END = 0xFFFFFFFF

# Of more occurrences than this, that many evenly spaced ones are counted.
MAX_COUNTED = 64
MAX_GATHERED = MAX_FILES * MAX_COUNTED


class DatastoreArrays(NamedTuple):
    """words: MAX_FILES arrays, empty ones behind those in use. layouts: int64 (F, LAYOUT), a row for each in use."""

    words: tuple[UInt32Vector, UInt32Vector, UInt32Vector, UInt32Vector]
    layouts: Int64Table


@kernel
def find(files: DatastoreArrays, context: Int32Vector, max_length: Number, state: Int32Vector) -> None:
    """Set `state` to the longest suffix of `context`, of at most max_length tokens, that occurs in a file."""
    state[:] = 0
    limit = min(np.int64(max_length), np.int64(context.shape[0]))
    # If a suffix occurs, all shorter ones do: double the length until none is found, then bisect.
    longest, failed, length = np.int64(0), limit + 1, min(np.int64(2), limit)
    while longest + 1 < failed:
        _find_exactly(files, context, length, state)
        if state[0] == length:
            longest = length
            length = min(2 * longest, failed - 1) if failed == limit + 1 else (longest + failed) >> 1
        else:
            failed = length
            length = (longest + failed) >> 1
    if state[0] != longest:  # the last trial failed
        _find_exactly(files, context, longest, state)


@kernel
def narrow(files: DatastoreArrays, state: Int32Vector, token: Number, child: Int32Vector) -> Number:
    """Set `child`, which may be `state` itself, to the match of `state` extended by `token`.

    Returns how often that occurs; its length is 0 if it does not.
    """
    length = np.int64(state[0])
    child[0] = 0
    total = np.int64(0)
    for f in range(MAX_FILES):
        lo, hi = np.int64(0), np.int64(0)
        if f < files.layouts.shape[0] and 0 <= token < files.layouts[f, VOCAB_SIZE]:
            lo, hi = np.int64(state[1 + 2 * f]), np.int64(state[2 + 2 * f])
            if length == 0:
                lo, hi = np.int64(0), files.layouts[f, NUM_SUFFIXES]
            lo, hi = _narrow_in_file(files.words[f], files.layouts[f], lo, hi, length, np.int64(token))
        child[1 + 2 * f] = lo
        child[2 + 2 * f] = hi
        total += hi - lo
    if total > 0:
        child[0] = length + 1
    return total


@kernel
def successors(
    files: DatastoreArrays,
    state: Int32Vector,
    max_children: Number,
    token_ids: Int32Vector,
    counts: Int32Vector,
) -> Number:
    """Fill token_ids and counts, of MAX_GATHERED each, with what followed the match; most frequent, then lowest first.

    Returns their number, at most max_children. Of more than MAX_COUNTED occurrences in a file, the counts' error is
    below one MAX_COUNTED-th of them, and rarer tokens may be missing.
    """
    num, length = np.int64(0), np.int64(state[0])
    for f in range(files.layouts.shape[0]):
        lo, hi = np.int64(state[1 + 2 * f]), np.int64(state[2 + 2 * f])
        if lo < hi:
            num = _count_successors(files.words[f], files.layouts[f], lo, hi, length, token_ids, counts, num)
    return _sort_most_frequent(token_ids, counts, num, min(np.int64(max_children), num))


@part
def _find_exactly(files: DatastoreArrays, context: Int32Vector, length: Number, state: Int32Vector) -> None:
    """Set `state` to the match of the last `length` tokens of `context`, of length 0 if there is none."""
    state[:] = 0
    end = context[context.shape[0] - length :]
    for f in range(files.layouts.shape[0]):
        lo, hi = _find_in_file(files.words[f], files.layouts[f], end)
        if lo < hi:
            state[0] = length
            state[1 + 2 * f] = lo
            state[2 + 2 * f] = hi


@part
def _find_in_file(file: UInt32Vector, layout: Int64Vector, tokens: Int32Vector) -> tuple[Number, Number]:
    """The interval of suffixes that start with `tokens`."""
    length = np.int64(tokens.shape[0])
    for token in tokens:
        if token < 0 or token >= layout[VOCAB_SIZE]:
            return np.int64(0), np.int64(0)
    key, next_key = np.int64(tokens[0]) << 32, np.int64(tokens[0] + 1) << 32
    if length > 1:
        key += np.int64(tokens[1])
        next_key = key + 1
    lo = _find_key(file, layout, np.int64(0), layout[NUM_SUFFIXES], key)
    hi = _find_key(file, layout, lo, layout[NUM_SUFFIXES], next_key)
    depth = np.int64(2)
    while depth < length and lo + 1 < hi:
        lo, hi = _narrow_in_file(file, layout, lo, hi, depth, np.int64(tokens[depth]))
        depth += 1
    while depth < length and lo < hi:  # one suffix is left: compare its text
        if _token_of(file, layout, lo, depth) != tokens[depth]:
            hi = lo
        depth += 1
    return lo, hi


@small_part
def _token_at(file: UInt32Vector, layout: Int64Vector, position: Number) -> Number:
    """The token id at a position; above the vocabulary at a document's end and outside the file."""
    if position >= layout[NUM_POSITIONS]:
        return np.int64(END)
    if layout[IS_WIDE]:
        return np.int64(file[layout[TOKENS] + position])
    word = np.int64(file[layout[TOKENS] + (position >> 1)])
    return (word >> ((position & 1) << 4)) & 0xFFFF


@small_part
def _token_of(file: UInt32Vector, layout: Int64Vector, suffix: Number, depth: Number) -> Number:
    """The token id `depth` tokens after the start of the suffix of a rank."""
    return _token_at(file, layout, np.int64(file[layout[SUFFIXES] + suffix]) + depth)


@small_part
def _lower_bound(
    file: UInt32Vector, layout: Int64Vector, lo: Number, hi: Number, depth: Number, token: Number
) -> Number:
    """The first suffix of [lo, hi) with a token of at least `token` at `depth`, or hi."""
    while lo < hi:
        middle = (lo + hi) >> 1
        if _token_of(file, layout, middle, depth) < token:
            lo = middle + 1
        else:
            hi = middle
    return lo


@part
def _upper_bound(
    file: UInt32Vector, layout: Int64Vector, lo: Number, hi: Number, depth: Number, token: Number
) -> Number:
    """The first suffix of [lo, hi) with a token above `token` at `depth`, or hi; fast if that is near lo."""
    step = np.int64(1)
    while lo + step < hi and _token_of(file, layout, lo + step, depth) <= token:
        lo += step
        step <<= 1
    return _lower_bound(file, layout, lo, min(lo + step, hi), depth, token + 1)


@part
def _find_key(file: UInt32Vector, layout: Int64Vector, lo: Number, hi: Number, key: Number) -> Number:
    """The first suffix of [lo, hi) whose first two tokens, as one number, are at least `key`, or hi."""
    first = (lo + KEY_STEP - 1) // KEY_STEP
    last = (hi - 1) // KEY_STEP + 1
    while first < last:
        middle = (first + last) >> 1
        at = layout[KEYS] + 2 * middle
        if (np.int64(file[at]) << 32) + np.int64(file[at + 1]) < key:
            first = middle + 1
        else:
            last = middle
    lo, hi = max(lo, (first - 1) * KEY_STEP), min(hi, first * KEY_STEP)
    while lo < hi:
        middle = (lo + hi) >> 1
        if (_token_of(file, layout, middle, 0) << 32) + _token_of(file, layout, middle, 1) < key:
            lo = middle + 1
        else:
            hi = middle
    return lo


@part
def _narrow_in_file(
    file: UInt32Vector, layout: Int64Vector, lo: Number, hi: Number, depth: Number, token: Number
) -> tuple[Number, Number]:
    """The part of [lo, hi), whose suffixes share `depth` tokens, that continues with `token`."""
    if lo >= hi:
        return lo, lo
    if depth < 2 and hi - lo > 2 * KEY_STEP:
        if depth == 0:
            key, next_key = token << 32, (token + 1) << 32
        else:
            key = (_token_of(file, layout, lo, 0) << 32) + token
            next_key = key + 1
        lo = _find_key(file, layout, lo, hi, key)
        return lo, _find_key(file, layout, lo, hi, next_key)
    lo = _lower_bound(file, layout, lo, hi, depth, token)
    if lo == hi or _token_of(file, layout, lo, depth) != token:
        return lo, lo
    return lo, _upper_bound(file, layout, lo, hi, depth, token)


@part
def _count_successors(
    file: UInt32Vector,
    layout: Int64Vector,
    lo: Number,
    hi: Number,
    depth: Number,
    token_ids: Int32Vector,
    counts: Int32Vector,
    num: Number,
) -> Number:
    """Add a file's successors to token_ids and counts, whose first `num` are used. Returns the new number."""
    size = hi - lo
    num_probes = min(size, np.int64(MAX_COUNTED))
    if _token_of(file, layout, lo, depth) == _token_of(file, layout, hi - 1, depth):
        num_probes = np.int64(1)
    token = _probe(file, layout, lo, size, depth, np.int64(0), num_probes)
    start = np.int64(0)
    for probe in range(1, num_probes + 1):  # equal successors are neighbours
        next_token = np.int64(-1)
        if probe < num_probes:
            next_token = _probe(file, layout, lo, size, depth, probe, num_probes)
        if next_token != token:
            if token < layout[VOCAB_SIZE]:
                count = probe * size // num_probes - start * size // num_probes
                num = _add(token_ids, counts, num, token, count)
            token = next_token
            start = np.int64(probe)
    return num


@small_part
def _probe(
    file: UInt32Vector, layout: Int64Vector, lo: Number, size: Number, depth: Number, probe: Number, num_probes: Number
) -> Number:
    """The successor in the middle of a probe's share of the occurrences."""
    return _token_of(file, layout, lo + (2 * probe + 1) * size // (2 * num_probes), depth)


@small_part
def _add(token_ids: Int32Vector, counts: Int32Vector, num: Number, token: Number, count: Number) -> Number:
    for i in range(num):
        if token_ids[i] == token:
            counts[i] += count
            return num
    if num == token_ids.shape[0]:
        return num
    token_ids[num] = token
    counts[num] = count
    return num + 1


@small_part
def _sort_most_frequent(token_ids: Int32Vector, counts: Int32Vector, num: Number, num_wanted: Number) -> Number:
    """Move the num_wanted most frequent to the front, in order."""
    for i in range(num_wanted):
        best = i
        for j in range(i + 1, num):
            if counts[j] > counts[best] or (counts[j] == counts[best] and token_ids[j] < token_ids[best]):
                best = j
        token_ids[i], token_ids[best] = token_ids[best], token_ids[i]
        counts[i], counts[best] = counts[best], counts[i]
    return num_wanted
