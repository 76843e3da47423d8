"""What the sources say about the token after a path, and how their matches move along when the path grows."""

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Int32Array, Int64Array, Number, Successors
from reader_edge_runtime.drafting.kernels.counts import (
    ORDER,
    find,
    hash_key,
    hash_push,
    hash_start,
    is_single,
    single_position,
    single_token,
)
from reader_edge_runtime.drafting.kernels.jit import part, small_part
from reader_edge_runtime.drafting.kernels.layout import (
    AFTER_PAIR,
    AFTER_TOKEN,
    CANDIDATES,
    CLASSES,
    CONTEXT_INPUTS,
    CONTEXT_STATE,
    COPY,
    COUNT_CLASS,
    HISTORY_INPUTS,
    HISTORY_STATE,
    KIND,
    LENGTH_BUCKET,
    LEVEL_OF_TOTAL,
    LEVELS,
    LOGITS_INPUTS,
    MAX_CANDIDATES,
    MAX_DIFFERENCES,
    MAX_LENGTH,
    MAX_NAMED,
    MAX_PAIRS,
    MAX_TOTAL,
    MIN_RESUMED,
    MISS,
    NUM_CANDIDATES,
    NUM_PAIRS,
    NUM_PLACES,
    NUM_PROPOSALS,
    NUM_SPEAKING,
    PAIR_CANDIDATE,
    PAIR_CLASS,
    PAIR_SPEAKER,
    PLACES,
    PROPOSAL_INPUTS,
    PROPOSAL_STATE,
    RESUMED,
    ROWS_FOUND,
    SET,
    SET_2,
    SET_LEVEL,
    SINGLE,
    SPEAKING,
    TOP,
    WEIGHT,
)
from reader_edge_runtime.drafting.kernels.rows import BLOCK, ORDER_0_ROW, TEXT_MASK, next_entry
from reader_edge_runtime.drafting.kernels.successors import (
    BEFORE,
    CLASS_WORDS,
    FURTHER,
    NAMED,
    NUM_AND_LEVEL,
    find_pair,
)


@part
def gather(
    node: Int32Array,
    context_header: Int64Array,
    context_table: Int64Array,
    context_rows: Int32Array,
    context_text: Int32Array,
    history_header: Int64Array,
    history_table: Int64Array,
    history_rows: Int32Array,
    history_text: Int32Array,
    successors: Successors,
    proposals: Int32Array,
    evidence: Int32Array,
) -> None:
    """Fill `evidence` with what is known about the token after a node; the node takes up the copies it finds."""
    evidence[: NUM_PAIRS + 1] = 0
    evidence[PLACES : PLACES + NUM_PLACES] = -1
    _add_proposals(proposals, node, evidence)
    _add_successors(successors[0], successors[1], node, evidence)
    in_context = _gather_store(
        context_header, context_table, context_rows, context_text, node, CONTEXT_STATE, CONTEXT_INPUTS, evidence
    )
    kind, top = evidence[KIND], evidence[TOP]
    in_history = _gather_store(
        history_header, history_table, history_rows, history_text, node, HISTORY_STATE, HISTORY_INPUTS, evidence
    )
    agrees = 1 if top == evidence[TOP] else 0
    evidence[SET] = SET_LEVEL[min(in_context, MAX_LENGTH)] * 8 + SET_LEVEL[min(in_history, MAX_LENGTH)]
    evidence[SET_2] = (kind * 6 + evidence[KIND]) * 2 + agrees


@small_part
def advance(
    node: Int32Array,
    token: Number,
    context_header: Int64Array,
    context_text: Int32Array,
    history_header: Int64Array,
    history_text: Int32Array,
    proposals: Int32Array,
) -> None:
    """Move a node's state on to its child `token`."""
    _advance_store(context_text, context_header[TEXT_MASK], node, CONTEXT_STATE, token)
    _advance_store(history_text, history_header[TEXT_MASK], node, HISTORY_STATE, token)
    for e in range(NUM_PROPOSALS):
        if node[PROPOSAL_STATE + e] >= 0:
            node[PROPOSAL_STATE + e] = _proposed_child(proposals, node[PROPOSAL_STATE + e], token)
    for i in range(ORDER - 1, 0, -1):
        node[i] = node[i - 1]
    node[0] = token


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
def _add_speaker(evidence: Int32Array, which: Number, level: Number, miss: Number) -> Number:
    speaker = np.int64(evidence[NUM_SPEAKING])
    evidence[NUM_SPEAKING] = speaker + 1
    evidence[SPEAKING + speaker] = which
    evidence[WEIGHT + speaker] = which * LEVELS + level
    evidence[MISS + speaker] = which * CLASSES + miss
    return speaker


@small_part
def _add_pair(evidence: Int32Array, speaker: Number, which: Number, number: Number, token: Number) -> None:
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
def _add_one(evidence: Int32Array, which: Number, level: Number, number: Number, token: Number) -> None:
    """An input that names one token: class 2 * number for the others, the next one for it."""
    speaker = _add_speaker(evidence, which, level, number * 2)
    _add_pair(evidence, speaker, which, number * 2 + 1, token)


@part
def _add_row(evidence: Int32Array, rows: Int32Array, row: Number, order: Number, which: Number) -> None:
    base = np.int64(row) * BLOCK
    total = np.int64(rows[base + 1])
    shift = 0
    while (total >> shift) > MAX_TOTAL:
        shift += 1
    total >>= shift
    speaker = _add_speaker(evidence, which, LEVEL_OF_TOTAL[total], COUNT_CLASS[total, 0])
    last = rows[base + 3]
    entry = np.int64(base + 4)
    for _ in range(min(rows[base + 2], MAX_NAMED[order])):
        count: Number = min(max(np.int64(rows[entry + 1]) >> shift, 1), total)
        came_last = 1 if rows[entry + 2] == last else 0
        _add_pair(evidence, speaker, which, COUNT_CLASS[total, count] + came_last, rows[entry])
        entry = np.int64(next_entry(rows, entry))


@part
def _find_rows(
    header: Int64Array,
    table: Int64Array,
    rows: Int32Array,
    text: Int32Array,
    node: Int32Array,
    evidence: Int32Array,
) -> tuple[Number, Number, Number, Number]:
    """Rows of all orders that match, into `evidence`; their number, the single behind them or 0, the longest match
    and where the text goes on after it."""
    mask = header[TEXT_MASK]
    state = hash_start()
    single, longest, position = np.int64(0), np.int64(0), np.int64(-1)
    if rows[BLOCK * ORDER_0_ROW + 1] == 0:
        return np.int64(0), single, longest, position
    evidence[ROWS_FOUND] = ORDER_0_ROW
    while longest < ORDER and node[longest] >= 0:
        state = hash_push(state, node[longest])
        i = find(header, table, hash_key(state))
        if i < 0:
            break
        longest += 1
        value = table[i, 1]
        if is_single(value):
            num_rows = longest
            single = value
            position = single_position(value)
            while longest < ORDER and node[longest] >= 0 and text[(position - longest - 1) & mask] == node[longest]:
                longest += 1
            return num_rows, single, longest, position
        evidence[ROWS_FOUND + longest] = value
        position = np.int64(rows[value * BLOCK + 3])
    return longest + 1, single, longest, position


@part
def _gather_store(
    header: Int64Array,
    table: Int64Array,
    rows: Int32Array,
    text: Int32Array,
    node: Int32Array,
    at: Number,
    first_input: Number,
    evidence: Int32Array,
) -> Number:
    """Add one store's inputs; the length of its longest match. `at`: the store's place in the node's state."""
    num_rows, single, longest, position = _find_rows(header, table, rows, text, node, evidence)
    if longest > 0 and (node[at] < 0 or longest > node[at + 1]):
        node[at] = position
        node[at + 1] = longest
    _add_copies(text, header[TEXT_MASK], node, at, first_input, evidence)
    if single != 0:
        _add_one(evidence, first_input + SINGLE, longest - 1, longest, np.int32(single_token(single)))
    _note_kind(rows, node, at, single, longest, evidence)
    for order in range(num_rows - 1, -1, -1):
        _add_row(evidence, rows, evidence[ROWS_FOUND + order], order, first_input + order)
    return max(longest, np.int64(node[at + 1]))


@small_part
def _add_copies(
    text: Int32Array, mask: Number, node: Int32Array, at: Number, first_input: Number, evidence: Int32Array
) -> None:
    if node[at] >= 0:
        token = text[node[at] & mask]
        if token < 0:
            node[at] = -1
            node[at + 1] = 0
        else:
            bucket = LENGTH_BUCKET[min(node[at + 1], MAX_LENGTH)]
            _add_one(evidence, first_input + COPY, bucket >> 1, bucket, token)
    if node[at + 2] >= 0 and node[at + 2] != node[at]:
        token = text[node[at + 2] & mask]
        if token < 0:
            node[at + 2] = -1
        else:
            _add_one(evidence, first_input + RESUMED, node[at + 3] & 7, node[at + 3], token)


@small_part
def _note_kind(
    rows: Int32Array, node: Int32Array, at: Number, single: Number, longest: Number, evidence: Int32Array
) -> None:
    """How the longest match speaks: not at all, with one voice, with several; and what it says first."""
    evidence[KIND] = 0
    evidence[TOP] = -1
    if single != 0:
        evidence[KIND] = 1
        evidence[TOP] = single_token(single)
    elif longest > 0:
        base = np.int64(evidence[ROWS_FOUND + longest]) * BLOCK
        evidence[KIND] = 1 if rows[base + 2] == 1 else 2
        evidence[TOP] = rows[base + 4]
    if node[at + 2] >= 0:
        evidence[KIND] += 3


@small_part
def _advance_store(text: Int32Array, mask: Number, node: Int32Array, at: Number, token: Number) -> None:
    resumed = node[at + 2]
    if resumed >= 0:
        hits, differences = node[at + 3] & 7, node[at + 3] >> 3
        if text[resumed & mask] == token:
            hits = min(hits + 1, 7)
        else:
            hits = 0
            differences += 1
        node[at + 2] = (resumed + 1) & mask if differences <= MAX_DIFFERENCES else -1
        node[at + 3] = differences * 8 + hits
    copy = node[at]
    if copy >= 0:
        if text[copy & mask] == token:
            node[at] = (copy + 1) & mask
            node[at + 1] += 1
            return
        if node[at + 1] >= MIN_RESUMED:
            node[at + 2] = (copy + 1) & mask
            node[at + 3] = 8
        node[at] = -1
        node[at + 1] = 0


@part
def _add_successors(after_token: Int32Array, after_pair: Int32Array, node: Int32Array, evidence: Int32Array) -> None:
    if node[1] >= 0:
        row = find_pair(after_pair, node[1], node[0])
        if row >= 0:
            _add_record(after_pair[row], LOGITS_INPUTS + AFTER_PAIR, after_pair[row, FURTHER] == node[2], evidence)
    if node[0] < after_token.shape[0]:
        record = after_token[node[0]]
        if record[NUM_AND_LEVEL] >= LEVELS:
            _add_record(record, LOGITS_INPUTS + AFTER_TOKEN, record[BEFORE] == node[1], evidence)


@small_part
def _add_record(record: Int32Array, which: Number, is_same_further_back: Number, evidence: Int32Array) -> None:
    level = record[NUM_AND_LEVEL] & (LEVELS - 1)
    speaker = _add_speaker(evidence, which, level, level)
    for i in range(record[NUM_AND_LEVEL] // LEVELS):
        number = (record[CLASS_WORDS + (i >> 1)] >> (16 * (i & 1))) & 0xFFFF
        if is_same_further_back:
            number += 1
        _add_pair(evidence, speaker, which, number, record[NAMED + i])


@small_part
def _add_proposals(proposals: Int32Array, node: Int32Array, evidence: Int32Array) -> None:
    for e in range(NUM_PROPOSALS):
        if node[PROPOSAL_STATE + e] < 0:
            continue
        child = proposals[node[PROPOSAL_STATE + e], 1]
        if child:
            which = PROPOSAL_INPUTS + e
            speaker = _add_speaker(evidence, which, 0, 0)
            while child:
                _add_pair(evidence, speaker, which, 1 + proposals[child, 3], proposals[child, 0])
                child = proposals[child, 2]


@small_part
def _proposed_child(proposals: Int32Array, parent: Number, token: Number) -> Number:
    child = proposals[parent, 1]
    while child and proposals[child, 0] != token:
        child = proposals[child, 2]
    return child if child else -1
