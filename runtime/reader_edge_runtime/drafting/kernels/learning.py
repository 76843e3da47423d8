"""Online learning of the mixture model: weights and classes are updated by each token that an answer goes on with."""

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Float32Table, Float32Vector, Int32Table, Int32Vector, Number
from reader_edge_runtime.drafting.kernels.counts import ORDER, learn
from reader_edge_runtime.drafting.kernels.evidence import EvidenceSources, advance, find_again, gather
from reader_edge_runtime.drafting.kernels.kernel import kernel, part, small_part
from reader_edge_runtime.drafting.kernels.layout import NOT_GATHERED, NUM_ACTIVE, NUM_CANDIDATES, STATE
from reader_edge_runtime.drafting.kernels.mixture import learn_mixture, learn_value, score
from reader_edge_runtime.drafting.kernels.tree import PARENT, PLACE, TAKEN, TOKEN, Arrays


@kernel
def observe(arrays: Arrays, token_ids: Int32Vector, num_nodes: int, end: int) -> int:
    """Append tokens to the text and learn how well they, and the tree drafted for them, were predicted.

    num_nodes: of the last draft, including nodes that were not verified; 0 without one. Its evidence is reused.
    end: where the context's text ends. Returns how many of the tokens were counted before its arrays were full.
    """
    _learn_tree(token_ids, arrays.parameters, arrays.nodes, arrays.values, num_nodes)
    _learn_tokens(arrays, token_ids, num_nodes)
    # Counted last, so that no token predicts itself.
    context = arrays.sources.context
    for i in range(len(token_ids)):
        context.text[end + i] = token_ids[i]
    return learn(context, end, end + len(token_ids))


@part
def _learn_tokens(arrays: Arrays, token_ids: Int32Vector, num_nodes: int) -> None:
    """Learn from each token and move the state on, taking it from the tree while the tokens follow that."""
    sources, state, nodes, _, states, evidences, parameters, scratch, work = arrays
    node = 0 if num_nodes else -1
    for token in token_ids:
        taken = nodes[TAKEN, node] if node >= 0 else 0
        if node < 0 or evidences[taken, NUM_ACTIVE] == NOT_GATHERED:
            if node > 0:
                _take_state(sources, states[taken], state)
            node, taken = -1, 0
            gather(sources, state, evidences[0], work)
        evidence = evidences[taken]
        if evidence[NUM_CANDIDATES]:
            score(parameters, evidence, scratch, work)
            learn_mixture(parameters, evidence, scratch, token)
        if node >= 0:
            node = _child(nodes, num_nodes, node, token)
            if node < 0:
                _take_state(sources, states[taken], state)
        if node < 0:
            advance(sources, state, token, ORDER)
    if node > 0:
        _take_state(sources, states[nodes[TAKEN, node]], state)


@part
def _learn_tree(
    token_ids: Int32Vector, parameters: Float32Vector, nodes: Int32Table, values: Float32Table, num_nodes: int
) -> None:
    """Learn of each node whether the text reached it; below the last token that is still unknown."""
    matched = nodes[PLACE]  # of no other use now: tokens that match up to the node, -1 if it was missed
    matched[0] = 0
    for node in range(1, num_nodes):
        above = matched[nodes[PARENT, node]]
        if above >= len(token_ids):
            matched[node] = above
            continue
        is_hit = above >= 0 and nodes[TOKEN, node] == token_ids[above]
        matched[node] = above + 1 if is_hit else -1
        learn_value(parameters, values[0, node], np.float32(1) if is_hit else np.float32(0))


@small_part
def _child(nodes: Int32Table, num_nodes: int, node: Number, token: Number) -> Number:
    """The child of a node with this token, or -1."""
    for other in range(node + 1, num_nodes):
        if nodes[PARENT, other] == node and nodes[TOKEN, other] == token:
            return other
    return -1


@part
def _take_state(sources: EvidenceSources, node: Int32Vector, state: Int32Vector) -> None:
    """Take a tree node's state; if its match in datastores ended on the way, look for the longest again."""
    for i in range(STATE):
        state[i] = node[i]
    find_again(sources.files, state)
