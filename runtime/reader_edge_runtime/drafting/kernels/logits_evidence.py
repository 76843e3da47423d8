"""What the target's own successors of a token and of a pair say about the token after a path."""

from reader_edge_runtime.drafting.kernels.arrays import Int32Array, Number, Successors
from reader_edge_runtime.drafting.kernels.jit import part, small_part
from reader_edge_runtime.drafting.kernels.layout import AFTER_PAIR, AFTER_TOKEN, LEVELS, LOGITS_INPUTS
from reader_edge_runtime.drafting.kernels.successors import (
    BEFORE,
    FURTHER,
    NAMED,
    NUM_AND_LEVEL,
    class_of,
    find_pair,
)
from reader_edge_runtime.drafting.kernels.voices import add_pair, add_speaker


@part
def add_successors(successors: Successors, node: Int32Array, evidence: Int32Array, work: Int32Array) -> None:
    """Add what was recorded after the path's last pair and after its last token."""
    after_token, after_pair = successors.after_token, successors.after_pair
    if node[1] >= 0:
        row = find_pair(after_pair, node[1], node[0])
        if row >= 0:
            _add_record(
                after_pair[row], LOGITS_INPUTS + AFTER_PAIR, after_pair[row, FURTHER] == node[2], evidence, work
            )
    if node[0] < after_token.shape[0]:
        record = after_token[node[0]]
        if record[NUM_AND_LEVEL] >= LEVELS:
            _add_record(record, LOGITS_INPUTS + AFTER_TOKEN, record[BEFORE] == node[1], evidence, work)


@small_part
def _add_record(
    record: Int32Array, which: Number, is_same_further_back: Number, evidence: Int32Array, work: Int32Array
) -> None:
    level = record[NUM_AND_LEVEL] & (LEVELS - 1)
    speaker = add_speaker(evidence, which, level, level)
    for i in range(record[NUM_AND_LEVEL] // LEVELS):
        add_pair(evidence, work, speaker, which, class_of(record, i, is_same_further_back), record[NAMED + i])
