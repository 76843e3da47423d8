"""What all n-gram stores, datastores and proposals say of the token after a path of a draft tree, as the path grows."""

from typing import NamedTuple

import numpy as np

from reader_edge_runtime.drafting.kernels import layout
from reader_edge_runtime.drafting.kernels.arrays import Int32Table, Int32Vector, Number, Store, SuccessorRecords
from reader_edge_runtime.drafting.kernels.counts import ORDER
from reader_edge_runtime.drafting.kernels.datastore import MAX_GATHERED, DatastoreArrays, find, narrow, successors
from reader_edge_runtime.drafting.kernels.datastore import STATE as MATCH
from reader_edge_runtime.drafting.kernels.inputs import add_input, add_pair
from reader_edge_runtime.drafting.kernels.kernel import part, small_part
from reader_edge_runtime.drafting.kernels.matches import advance_store, gather_store
from reader_edge_runtime.drafting.kernels.successors import add_successors

# Of datastores; what follows a single token is too varied to be worth a look-up.
_MAX_NAMED = 8
_MIN_LENGTH = 2
_LONG_MATCH = 4


class EvidenceSources(NamedTuple):
    """Where evidence comes from. files: of datastores. proposals: (P, 4), see proposals.py."""

    context: Store
    history: Store
    successors: SuccessorRecords
    files: DatastoreArrays
    proposals: Int32Table


@part
def gather(sources: EvidenceSources, node: Int32Vector, evidence: Int32Vector, work: Int32Vector) -> None:
    """Fill `evidence` with what is known of the token after a node, whose state takes up the copies found."""
    evidence[: layout.NUM_PAIRS + 1] = 0
    work[layout.PLACES : layout.PLACES + layout.NUM_PLACES] = -1
    _add_proposals(sources.proposals, node, evidence, work)
    add_successors(sources.successors, node, evidence, work)
    _add_datastore(sources.files, node, evidence, work)
    in_context = gather_store(sources.context, node, layout.CONTEXT_STATE, layout.CONTEXT_INPUTS, evidence, work)
    kind, top = work[layout.KIND], work[layout.TOP]
    in_history = gather_store(sources.history, node, layout.HISTORY_STATE, layout.HISTORY_INPUTS, evidence, work)
    agrees = 1 if top == work[layout.TOP] else 0
    # A datastore's match counts as one of the history: weights for that case are learned already.
    in_history = max(in_history, np.int64(node[layout.DATASTORE_STATE]))
    evidence[layout.SET] = (
        layout.SET_LEVEL[min(in_context, layout.MAX_LENGTH)] * 8 + layout.SET_LEVEL[min(in_history, layout.MAX_LENGTH)]
    )
    evidence[layout.LAST_TOKEN] = node[0]
    evidence[layout.SET_2] = (kind * 6 + work[layout.KIND]) * 2 + agrees


@small_part
def advance(sources: EvidenceSources, node: Int32Vector, token: Number, max_found: int) -> None:
    """Move a node's state to its child `token`.

    max_found: tokens of the path to look up in datastores if their match ends here; 0 for no look-up.
    """
    advance_store(sources.context, node, layout.CONTEXT_STATE, token)
    advance_store(sources.history, node, layout.HISTORY_STATE, token)
    for e in range(layout.NUM_PROPOSALS):
        if node[layout.PROPOSAL_STATE + e] >= 0:
            node[layout.PROPOSAL_STATE + e] = _proposed_child(sources.proposals, node[layout.PROPOSAL_STATE + e], token)
    for i in range(ORDER - 1, 0, -1):
        node[i] = node[i - 1]
    node[0] = token
    if sources.files.layouts.shape[0]:
        _advance_datastore(sources.files, node, token, max_found)


@small_part
def _add_proposals(proposals: Int32Table, node: Int32Vector, evidence: Int32Vector, work: Int32Vector) -> None:
    for e in range(layout.NUM_PROPOSALS):
        if node[layout.PROPOSAL_STATE + e] < 0:
            continue
        child = proposals[node[layout.PROPOSAL_STATE + e], 1]
        if child:
            which = np.int64(layout.PROPOSAL_INPUTS[e])
            active = add_input(evidence, which, 0, 0)
            while child and proposals[child, 0] != layout.ANY_TOKEN:
                add_pair(evidence, work, active, which, 1 + proposals[child, 3], proposals[child, 0])
                child = proposals[child, 2]


@small_part
def _proposed_child(proposals: Int32Table, parent: Number, token: Number) -> Number:
    child = proposals[parent, 1]
    while child and proposals[child, 0] != token and proposals[child, 0] != layout.ANY_TOKEN:
        child = proposals[child, 2]
    return child if child else -1


@part
def _add_datastore(files: DatastoreArrays, node: Int32Vector, evidence: Int32Vector, work: Int32Vector) -> None:
    """Add what followed the node's match in datastores."""
    if files.layouts.shape[0] == 0 or node[layout.DATASTORE_STATE] < _MIN_LENGTH:
        return
    match = node[layout.DATASTORE_STATE : layout.DATASTORE_STATE + MATCH]
    token_ids = work[layout.GATHERED : layout.GATHERED + MAX_GATHERED]
    counts = work[layout.GATHERED + MAX_GATHERED : layout.GATHERED + 2 * MAX_GATHERED]
    num = successors(files, match, _MAX_NAMED, token_ids, counts)
    total = np.int64(0)
    for f in range(files.layouts.shape[0]):
        total += match[2 + 2 * f] - match[1 + 2 * f]
    if num == 0:
        return
    shift = 0
    while (total >> shift) > layout.MAX_TOTAL:
        shift += 1
    total >>= shift
    is_long = 1 if match[0] >= _LONG_MATCH else 0
    level = layout.SET_LEVEL[min(match[0], layout.MAX_LENGTH)]
    active = add_input(evidence, layout.DATASTORE_INPUTS, level, layout.COUNT_CLASS[total, 0] + is_long)
    for i in range(num):
        count: Number = min(max(np.int64(counts[i]) >> shift, 1), total)
        add_pair(
            evidence, work, active, layout.DATASTORE_INPUTS, layout.COUNT_CLASS[total, count] + is_long, token_ids[i]
        )


@part
def _advance_datastore(files: DatastoreArrays, node: Int32Vector, token: Number, max_found: int) -> None:
    """Extend the match by `token`, the path's last token."""
    match = node[layout.DATASTORE_STATE : layout.DATASTORE_STATE + MATCH]
    if match[0] > 0 and narrow(files, match, token, match) > 0:
        return
    match[0] = 0
    if max_found:
        _find(files, node, max_found)


@small_part
def find_again(files: DatastoreArrays, node: Int32Vector) -> None:
    """Look the path up again if its match has ended."""
    if files.layouts.shape[0] and node[layout.DATASTORE_STATE] == 0:
        _find(files, node, ORDER)


@part
def _find(files: DatastoreArrays, node: Int32Vector, max_length: int) -> None:
    length = 0
    while length < max_length and node[length] >= 0:
        length += 1
    oldest_first = node[:length][::-1]
    find(files, oldest_first, length, node[layout.DATASTORE_STATE : layout.DATASTORE_STATE + MATCH])
