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
from reader_edge_runtime.drafting.kernels.datastore import Files
from reader_edge_runtime.drafting.kernels.datastore_evidence import add_datastore, advance_datastore
from reader_edge_runtime.drafting.kernels.jit import part, small_part
from reader_edge_runtime.drafting.kernels.layout import (
    CONTEXT_INPUTS,
    CONTEXT_STATE,
    COPY,
    COUNT_CLASS,
    HISTORY_INPUTS,
    HISTORY_STATE,
    KIND,
    LENGTH_BUCKET,
    LEVEL_OF_TOTAL,
    MAX_DIFFERENCES,
    MAX_LENGTH,
    MAX_NAMED,
    MAX_TOTAL,
    MIN_RESUMED,
    NUM_PAIRS,
    NUM_PLACES,
    NUM_PROPOSALS,
    PLACES,
    PROPOSAL_INPUTS,
    PROPOSAL_STATE,
    RESUMED,
    ROWS_FOUND,
    SET,
    SET_2,
    SET_LEVEL,
    SINGLE,
    TOP,
)
from reader_edge_runtime.drafting.kernels.logits_evidence import add_successors
from reader_edge_runtime.drafting.kernels.rows import BLOCK, ORDER_0_ROW, TEXT_MASK, next_entry
from reader_edge_runtime.drafting.kernels.voices import add_one, add_pair, add_speaker


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
    files: Files,
    layouts: Int64Array,
    proposals: Int32Array,
    evidence: Int32Array,
) -> None:
    """Fill `evidence` with what is known about the token after a node; the node takes up the copies it finds."""
    evidence[: NUM_PAIRS + 1] = 0
    evidence[PLACES : PLACES + NUM_PLACES] = -1
    _add_proposals(proposals, node, evidence)
    add_successors(successors[0], successors[1], node, evidence)
    add_datastore(files, layouts, node, evidence)
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
    files: Files,
    layouts: Int64Array,
    proposals: Int32Array,
    max_found: int,
) -> None:
    """Move a node's state on to its child `token`.

    max_found: how long an end of the path is looked for in datastores where the match does not go on.
    """
    _advance_store(context_text, context_header[TEXT_MASK], node, CONTEXT_STATE, token)
    _advance_store(history_text, history_header[TEXT_MASK], node, HISTORY_STATE, token)
    for e in range(NUM_PROPOSALS):
        if node[PROPOSAL_STATE + e] >= 0:
            node[PROPOSAL_STATE + e] = _proposed_child(proposals, node[PROPOSAL_STATE + e], token)
    for i in range(ORDER - 1, 0, -1):
        node[i] = node[i - 1]
    node[0] = token
    advance_datastore(files, layouts, node, token, max_found)


@part
def _add_row(evidence: Int32Array, rows: Int32Array, row: Number, order: Number, which: Number) -> None:
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
        add_pair(evidence, speaker, which, COUNT_CLASS[total, count] + came_last, rows[entry])
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
        add_one(evidence, first_input + SINGLE, longest - 1, longest, np.int32(single_token(single)))
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
            add_one(evidence, first_input + COPY, bucket >> 1, bucket, token)
    if node[at + 2] >= 0 and node[at + 2] != node[at]:
        token = text[node[at + 2] & mask]
        if token < 0:
            node[at + 2] = -1
        else:
            add_one(evidence, first_input + RESUMED, node[at + 3] & 7, node[at + 3], token)


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


@small_part
def _add_proposals(proposals: Int32Array, node: Int32Array, evidence: Int32Array) -> None:
    for e in range(NUM_PROPOSALS):
        if node[PROPOSAL_STATE + e] < 0:
            continue
        child = proposals[node[PROPOSAL_STATE + e], 1]
        if child:
            which = PROPOSAL_INPUTS + e
            speaker = add_speaker(evidence, which, 0, 0)
            while child:
                add_pair(evidence, speaker, which, 1 + proposals[child, 3], proposals[child, 0])
                child = proposals[child, 2]


@small_part
def _proposed_child(proposals: Int32Array, parent: Number, token: Number) -> Number:
    child = proposals[parent, 1]
    while child and proposals[child, 0] != token:
        child = proposals[child, 2]
    return child if child else -1
