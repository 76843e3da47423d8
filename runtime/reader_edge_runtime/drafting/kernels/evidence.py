"""What all sources say about the token after a path, and how they move along when the path grows."""

from typing import NamedTuple

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Int32Array, Int64Array, Number, Store, Successors
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
from reader_edge_runtime.drafting.kernels.matches import advance_store, gather_store
from reader_edge_runtime.drafting.kernels.successors import add_successors
from reader_edge_runtime.drafting.kernels.voices import add_pair, add_speaker


class Sources(NamedTuple):
    """What evidence is looked up in. files, layouts: datastores; proposals: (P, 4), see kernels/layout.py."""

    context: Store
    history: Store
    successors: Successors
    files: Files
    layouts: Int64Array
    proposals: Int32Array


@part
def gather(sources: Sources, node: Int32Array, evidence: Int32Array, work: Int32Array) -> None:
    """Fill `evidence` with what is known about the token after a node; the node takes up the copies it finds."""
    evidence[: NUM_PAIRS + 1] = 0
    work[PLACES : PLACES + NUM_PLACES] = -1
    _add_proposals(sources.proposals, node, evidence, work)
    add_successors(sources.successors, node, evidence, work)
    add_datastore(sources.files, sources.layouts, node, evidence, work)
    in_context = gather_store(sources.context, node, CONTEXT_STATE, CONTEXT_INPUTS, evidence, work)
    kind, top = work[KIND], work[TOP]
    in_history = gather_store(sources.history, node, HISTORY_STATE, HISTORY_INPUTS, evidence, work)
    agrees = 1 if top == work[TOP] else 0
    # A datastore is a longer history: how much the others count beside it was learned with that.
    in_history = max(in_history, np.int64(node[DATASTORE_STATE]))
    evidence[SET] = SET_LEVEL[min(in_context, MAX_LENGTH)] * 8 + SET_LEVEL[min(in_history, MAX_LENGTH)]
    evidence[SET_2] = (kind * 6 + work[KIND]) * 2 + agrees


@small_part
def advance(sources: Sources, node: Int32Array, token: Number, max_found: int) -> None:
    """Move a node's state on to its child `token`.

    max_found: how long an end of the path is looked for in datastores where the match does not go on.
    """
    advance_store(sources.context, node, CONTEXT_STATE, token)
    advance_store(sources.history, node, HISTORY_STATE, token)
    for e in range(NUM_PROPOSALS):
        if node[PROPOSAL_STATE + e] >= 0:
            node[PROPOSAL_STATE + e] = _proposed_child(sources.proposals, node[PROPOSAL_STATE + e], token)
    for i in range(ORDER - 1, 0, -1):
        node[i] = node[i - 1]
    node[0] = token
    advance_datastore(sources.files, sources.layouts, node, token, max_found)


@small_part
def _add_proposals(proposals: Int32Array, node: Int32Array, evidence: Int32Array, work: Int32Array) -> None:
    for e in range(NUM_PROPOSALS):
        if node[PROPOSAL_STATE + e] < 0:
            continue
        child = proposals[node[PROPOSAL_STATE + e], 1]
        if child:
            which = PROPOSAL_INPUTS + e
            speaker = add_speaker(evidence, which, 0, 0)
            while child:
                add_pair(evidence, work, speaker, which, 1 + proposals[child, 3], proposals[child, 0])
                child = proposals[child, 2]


@small_part
def _proposed_child(proposals: Int32Array, parent: Number, token: Number) -> Number:
    child = proposals[parent, 1]
    while child and proposals[child, 0] != token:
        child = proposals[child, 2]
    return child if child else -1
