"""Learn from what the target said."""

import numpy as np

from reader_edge_runtime.drafting.kernels.arrays import Float32Array, Int32Array, Int64Array, Number, Successors
from reader_edge_runtime.drafting.kernels.calibration import learn_value
from reader_edge_runtime.drafting.kernels.counts import ORDER, count
from reader_edge_runtime.drafting.kernels.datastore import Files
from reader_edge_runtime.drafting.kernels.evidence import advance, gather
from reader_edge_runtime.drafting.kernels.jit import kernel, part
from reader_edge_runtime.drafting.kernels.layout import NUM_CANDIDATES
from reader_edge_runtime.drafting.kernels.mixture import learn_mixture, score


@part
def _learn_tree(token_ids: Int32Array, parameters: Float32Array, tree: Int32Array, values: Float32Array) -> None:
    """Learn of each node whether the text went through it; what lies below the last token is not known yet."""
    matched = np.zeros(tree.shape[1], np.int32)  # tokens up to and with the node, -1 where it was missed
    for node in range(1, tree.shape[1]):
        above = matched[tree[1, node]]
        if above >= len(token_ids):
            matched[node] = above
            continue
        is_hit = above >= 0 and tree[0, node] == token_ids[above]
        matched[node] = above + 1 if is_hit else -1
        learn_value(parameters, values[node], np.float32(1) if is_hit else np.float32(0))


@kernel
def move(
    token_ids: Int32Array,
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
    """Go on with tokens without learning from them."""
    for token in token_ids:
        gather(
            node,
            context_header,
            context_table,
            context_rows,
            context_text,
            history_header,
            history_table,
            history_rows,
            history_text,
            successors,
            files,
            layouts,
            proposals,
            evidence,
        )
        advance(
            node,
            token,
            context_header,
            context_text,
            history_header,
            history_text,
            files,
            layouts,
            proposals,
            ORDER,
        )


@kernel
def observe(
    token_ids: Int32Array,
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
    parameters: Float32Array,
    evidence: Int32Array,
    scratch: Float32Array,
    tree: Int32Array,
    values: Float32Array,
    end: Number,
) -> Number:
    """Learn that tokens follow `node`, which moves along, and how the tree that was drafted for them fared.

    end: where the context's text ends; the tokens are written there, and counted as far as its arrays have room. How
    many were counted is returned.

    tree: (2, N), tokens and parents of what was drafted, also of nodes that were not verified in the end; values: (N,),
    their predicted path values. N is 0 without a draft.
    """
    _learn_tree(token_ids, parameters, tree, values)
    for token in token_ids:
        gather(
            node,
            context_header,
            context_table,
            context_rows,
            context_text,
            history_header,
            history_table,
            history_rows,
            history_text,
            successors,
            files,
            layouts,
            proposals,
            evidence,
        )
        if evidence[NUM_CANDIDATES]:
            score(parameters, evidence, scratch)
            learn_mixture(parameters, evidence, scratch, token)
        advance(
            node,
            token,
            context_header,
            context_text,
            history_header,
            history_text,
            files,
            layouts,
            proposals,
            ORDER,
        )
    # Counted only now: what is learned above is how well the tokens are foretold.
    for i in range(len(token_ids)):
        context_text[end + i] = token_ids[i]
    return count(context_header, context_table, context_rows, context_text, end, end + len(token_ids))
