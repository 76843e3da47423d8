"""What all sources say about the token after a path, and how they move along when the path grows."""

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Int32Array, Int64Array, Number, Successors
from reader_edge_runtime.drafting.kernels.counts import ORDER
from reader_edge_runtime.drafting.kernels.datastore import Files
from reader_edge_runtime.drafting.kernels.datastore_evidence import add_datastore, advance_datastore
from reader_edge_runtime.drafting.kernels.jit import part, small_part
from reader_edge_runtime.drafting.kernels.layout import (
    CONTEXT_INPUTS,
    CONTEXT_STATE,
    DATASTORE_STATE,
    HISTORY_INPUTS,
    HISTORY_STATE,
    KIND,
    MAX_LENGTH,
    NUM_PAIRS,
    NUM_PLACES,
    NUM_PROPOSALS,
    PLACES,
    PROPOSAL_INPUTS,
    PROPOSAL_STATE,
    SET,
    SET_2,
    SET_LEVEL,
    TOP,
)
from reader_edge_runtime.drafting.kernels.logits_evidence import add_successors
from reader_edge_runtime.drafting.kernels.matches import advance_store, gather_store
from reader_edge_runtime.drafting.kernels.rows import TEXT_MASK
from reader_edge_runtime.drafting.kernels.voices import add_pair, add_speaker


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
    in_context = gather_store(
        context_header, context_table, context_rows, context_text, node, CONTEXT_STATE, CONTEXT_INPUTS, evidence
    )
    kind, top = evidence[KIND], evidence[TOP]
    in_history = gather_store(
        history_header, history_table, history_rows, history_text, node, HISTORY_STATE, HISTORY_INPUTS, evidence
    )
    agrees = 1 if top == evidence[TOP] else 0
    # A datastore is a longer history: how much the others count beside it was learned with that.
    in_history = max(in_history, np.int64(node[DATASTORE_STATE]))
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
    advance_store(context_text, context_header[TEXT_MASK], node, CONTEXT_STATE, token)
    advance_store(history_text, history_header[TEXT_MASK], node, HISTORY_STATE, token)
    for e in range(NUM_PROPOSALS):
        if node[PROPOSAL_STATE + e] >= 0:
            node[PROPOSAL_STATE + e] = _proposed_child(proposals, node[PROPOSAL_STATE + e], token)
    for i in range(ORDER - 1, 0, -1):
        node[i] = node[i - 1]
    node[0] = token
    advance_datastore(files, layouts, node, token, max_found)


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
