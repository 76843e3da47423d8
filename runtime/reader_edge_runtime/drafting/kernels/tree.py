"""The best draft tree of every size: the node of the highest path value is added next.

A path's value is the product of its tokens' probabilities, so no child is worth more than its parent. The n most
valuable paths therefore form a tree for every n, and no other tree of n nodes has a higher sum of values.
"""

from typing import NamedTuple

import numpy as np

from reader_edge_runtime.drafting.kernels import layout
from reader_edge_runtime.drafting.kernels.arrays import Float32Table, Float32Vector, Int32Table, Int32Vector, Number
from reader_edge_runtime.drafting.kernels.evidence import EvidenceSources, advance, gather
from reader_edge_runtime.drafting.kernels.kernel import kernel, part, small_part
from reader_edge_runtime.drafting.kernels.mixture import LOGITS, PENDING_VALUE, calibrated, score, sigmoid

# nodes: int32 (NODE_FIELDS, N). TAKEN: the order in which a node was added, and the row of its state and evidence.
TOKEN, PARENT, DEPTH, SOURCE, TAKEN, PENDING_TOKEN, PENDING_PARENT, PENDING_SOURCE, PLACE = range(9)
NODE_FIELDS = 9

# values: float32 (VALUE_FIELDS, N): predicted path values, calibrated ones, and working memory
VALUE_FIELDS = 4
_MIN_VALUE = np.float32(1e-4)
_MAX_SUM = np.float32(0.98)

# A match in datastores that ends within the tree is not looked up again: that takes longer than the rest of a draft.
_MAX_FOUND = 0


class Arrays(NamedTuple):
    """The arrays of a request. state: int32 (STATE,), at the text's end. nodes, values, states, evidences: of the last
    draft. parameters, scratch, work: of the mixture, shared by all requests.
    """

    sources: EvidenceSources
    state: Int32Vector
    nodes: Int32Table
    values: Float32Table
    states: Int32Table
    evidences: Int32Table
    parameters: Float32Vector
    scratch: Float32Vector
    work: Int32Vector


@kernel
def draft(arrays: Arrays, max_nodes: int, max_depth: int) -> int:
    """Build the tree below the text's end. Returns its number of nodes, root included, at most max_nodes.

    nodes[TOKEN], nodes[PARENT], nodes[SOURCE] and values[1] then hold the tree, its most likely chain first; values[0]
    the values before calibration. states (N, STATE) and evidences (N, EVIDENCE), in the order of TAKEN, are what each
    node's children were predicted from; learning reads them again.
    """
    sources, root, nodes, values, states, evidences, parameters, scratch, work = arrays
    for i in range(layout.STATE):
        states[0, i] = root[i]
    nodes[TOKEN, 0], nodes[PARENT, 0], nodes[DEPTH, 0], nodes[SOURCE, 0], nodes[TAKEN, 0] = states[0, 0], -1, 0, -1, 0
    values[0, 0] = 1
    evidences[0, layout.NUM_ACTIVE] = layout.NOT_GATHERED
    num_nodes, num_pending, node = 1, 0, 0
    while num_nodes < max_nodes:
        if nodes[DEPTH, node] < max_depth:
            evidence = evidences[node]
            gather(sources, states[node], evidence, work)
            score(parameters, evidence, scratch, work)
            room = max_nodes - num_nodes
            num_pending = _add_pending(evidence, work, scratch, nodes, node, values[0, node], num_pending, room)
        if num_pending == 0:
            break
        num_pending -= 1
        node = num_nodes
        num_nodes += 1
        parent = nodes[PENDING_PARENT, num_pending]
        values[0, node] = scratch[PENDING_VALUE + num_pending]
        nodes[TOKEN, node], nodes[PARENT, node] = nodes[PENDING_TOKEN, num_pending], parent
        nodes[DEPTH, node], nodes[SOURCE, node] = nodes[DEPTH, parent] + 1, nodes[PENDING_SOURCE, num_pending]
        evidences[node, layout.NUM_ACTIVE] = layout.NOT_GATHERED
        for i in range(layout.STATE):
            states[node, i] = states[parent, i]
        advance(sources, states[node], nodes[TOKEN, node], _MAX_FOUND)
    _calibrate(parameters, values, num_nodes)
    _put_spine_first(nodes, values, num_nodes)
    return num_nodes


@part
def _add_pending(
    evidence: Int32Vector,
    work: Int32Vector,
    scratch: Float32Vector,
    nodes: Int32Table,
    node: Number,
    value: Number,
    num_pending: Number,
    room: Number,
) -> Number:
    """Add a node's children to the pending nodes, of which the `room` best are kept, lowest value first."""
    num_candidates = evidence[layout.NUM_CANDIDATES]
    total = np.float32(0)
    for c in range(num_candidates):
        scratch[LOGITS + c] = sigmoid(scratch[LOGITS + c])
        total += scratch[LOGITS + c]
    if total > _MAX_SUM:
        value = value * _MAX_SUM / total
    for c in range(num_candidates):
        child_value = scratch[LOGITS + c] * value
        if child_value < _MIN_VALUE or (num_pending == room and child_value <= scratch[PENDING_VALUE]):
            continue
        if num_pending == room:
            place = _place_from_below(scratch, nodes, num_pending, child_value)
        else:
            place = _place_from_above(scratch, nodes, num_pending, child_value)
            num_pending += 1
        scratch[PENDING_VALUE + place] = child_value
        nodes[PENDING_TOKEN, place] = evidence[layout.CANDIDATES + c]
        nodes[PENDING_PARENT, place] = node
        nodes[PENDING_SOURCE, place] = layout.SOURCE_OF_INPUT[work[layout.LEADING + c]]
    return num_pending


@small_part
def _move_pending(scratch: Float32Vector, nodes: Int32Table, to: Number, place: Number) -> None:
    scratch[PENDING_VALUE + to] = scratch[PENDING_VALUE + place]
    nodes[PENDING_TOKEN, to] = nodes[PENDING_TOKEN, place]
    nodes[PENDING_PARENT, to] = nodes[PENDING_PARENT, place]
    nodes[PENDING_SOURCE, to] = nodes[PENDING_SOURCE, place]


@small_part
def _place_from_below(scratch: Float32Vector, nodes: Int32Table, num_pending: Number, value: Number) -> Number:
    """Drop the lowest and move those below `value` down. Returns the free place."""
    place = 0
    while place + 1 < num_pending and scratch[PENDING_VALUE + place + 1] < value:
        _move_pending(scratch, nodes, place, place + 1)
        place += 1
    return place


@small_part
def _place_from_above(scratch: Float32Vector, nodes: Int32Table, num_pending: Number, value: Number) -> Number:
    """Move those of at least `value` up. Returns the free place."""
    place = num_pending
    while place > 0 and scratch[PENDING_VALUE + place - 1] >= value:
        _move_pending(scratch, nodes, place, place - 1)
        place -= 1
    return place


@part
def _calibrate(parameters: Float32Vector, values: Float32Table, num_nodes: Number) -> None:
    """Fill values[1] with calibrated values, which must fall from node to node as the predicted ones do.

    Neighbours that would rise share their mean (isotonic regression by pooling adjacent violators). So the best n nodes
    are the same by both, and no child is worth more than its parent.
    """
    num_pools = 0  # values[2]: mean of each pool, values[3]: its size
    for node in range(1, num_nodes):
        mean = calibrated(parameters, values[0, node])
        size = np.float32(1)
        while num_pools and values[2, num_pools - 1] < mean:
            num_pools -= 1
            pooled = values[3, num_pools]
            mean = (mean * size + values[2, num_pools] * pooled) / (size + pooled)
            size += pooled
        values[2, num_pools] = mean
        values[3, num_pools] = size
        num_pools += 1
    node = 1
    for pool in range(num_pools):
        for _ in range(np.int64(values[3, pool])):
            values[1, node] = values[2, pool]
            node += 1
    values[1, 0] = 1


@part
def _put_spine_first(nodes: Int32Table, values: Float32Table, num_nodes: Number) -> None:
    """Renumber nodes: the most likely chain, then the others in their order, parents before children.

    A node's first child is its most likely, so one pass finds the chain.
    """
    tail, length = 0, 1
    nodes[PLACE, 0] = 0
    for node in range(1, num_nodes):
        nodes[PLACE, node] = -1
        if nodes[PARENT, node] == tail:
            tail = node
            nodes[PLACE, node] = length
            length += 1
    following = length
    for node in range(1, num_nodes):
        if nodes[PLACE, node] < 0:
            nodes[PLACE, node] = following
            following += 1
    for node in range(1, num_nodes):  # the pending lists are done with: they are room for the copy
        place = nodes[PLACE, node]
        nodes[PENDING_TOKEN, place] = nodes[TOKEN, node]
        nodes[PENDING_PARENT, place] = nodes[PLACE, nodes[PARENT, node]]
        nodes[PENDING_SOURCE, place] = nodes[SOURCE, node]
        nodes[TAKEN, place] = node
        values[2, place] = values[0, node]
        values[3, place] = values[1, node]
    for node in range(1, num_nodes):
        nodes[TOKEN, node] = nodes[PENDING_TOKEN, node]
        nodes[PARENT, node] = nodes[PENDING_PARENT, node]
        nodes[SOURCE, node] = nodes[PENDING_SOURCE, node]
        values[0, node] = values[2, node]
        values[1, node] = values[3, node]
