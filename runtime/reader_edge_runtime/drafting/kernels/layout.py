"""The layout of the arrays that kernels share, and the classes of evidence.

Evidence about the next token comes from inputs. An input is a source at one match length. It names tokens and gives
each a class, for which mixture.py learns how often such a claim came true.

    inputs of context (0..11) and of history (12..23):
        0..8        a row of counts after a suffix of that many tokens
        SINGLE      a suffix that occurred once, classes by match length
        COPY        the text since an earlier match has repeated what followed it, classes by length
        RESUMED     a copy continued after a token that differed (an edit, a changed value in a repeated form)
    input 24        datastores: the longest match
    inputs 27, 28   successors recorded from the target's logits: after a token, after a pair
    inputs 29 to 31, 25, 26  proposals of other sources, in this order
"""

import numpy as np

from reader_edge_runtime.drafting.kernels.counts import ORDER
from reader_edge_runtime.drafting.kernels.datastore import MAX_GATHERED

SOURCES = ("context", "history", "datastore", "logits")  # and those that propose

NUM_INPUTS = 32
CONTEXT_INPUTS, HISTORY_INPUTS, DATASTORE_INPUTS, LOGITS_INPUTS = 0, 12, 24, 27
PROPOSAL_INPUTS = np.array([29, 30, 31, 25, 26], np.int32)
AFTER_TOKEN, AFTER_PAIR = 0, 1
SINGLE, COPY, RESUMED = 9, 10, 11
NUM_PROPOSALS = len(PROPOSAL_INPUTS)
ANY_TOKEN = -1  # of a proposal: last among siblings, it stands for all tokens that they do not name
SOURCE_OF_INPUT = np.array([0] * 12 + [1] * 12 + [2, 7, 8] + [3] * 2 + [4, 5, 6], np.int32)

# An input's weight depends on its level (support or match length), and on two sets chosen by the match state.
LEVELS = 8
NUM_SETS = 64
NUM_SETS_2 = 72

# State of a node, int32 (STATE,): the last ORDER tokens, newest first, -1 before the text; for each store the position
# and length of a copy, the position and state of a resumed copy; for each proposal its node; then the match in
# datastores (datastore.py).
CONTEXT_STATE, HISTORY_STATE, PROPOSAL_STATE, DATASTORE_STATE = ORDER, ORDER + 4, ORDER + 8, ORDER + 13
STATE = 30

# Evidence at a node, int32 (EVIDENCE,): counts, then active inputs (those that name a token), candidates (the tokens
# named) and pairs of both. An active input has the number of its weight (input * LEVELS + level) and its miss: the
# class of the candidates that it does not name. A pair is class, active input and candidate in one number. Before the
# look-up NUM_ACTIVE is NOT_GATHERED.
NUM_ACTIVE, NUM_CANDIDATES, NUM_PAIRS, SET, SET_2, LAST_TOKEN = range(6)
NOT_GATHERED = -1
MAX_CANDIDATES = 48
MAX_PAIRS = 384
WEIGHT = 8
MISS = WEIGHT + NUM_INPUTS
CANDIDATES = MISS + NUM_INPUTS
PAIRS = CANDIDATES + MAX_CANDIDATES
EVIDENCE = PAIRS + MAX_PAIRS
CLASS_SHIFT, ACTIVE_SHIFT, ACTIVE_MASK, CANDIDATE_MASK = 11, 6, 31, 63

# Working memory, int32 (WORK,): how many tokens a store's longest match names, and the first; the input that raises
# each candidate most; rows that a store found; a hash table of candidates; successors in datastores, then their counts.
KIND, TOP = 0, 1
LEADING = 16
ROWS_FOUND = LEADING + MAX_CANDIDATES
PLACES = ROWS_FOUND + 16
NUM_PLACES = 128
GATHERED = PLACES + NUM_PLACES
WORK = GATHERED + 2 * MAX_GATHERED

# Tokens that a row names, by order: more after short suffixes, whose counts are spread out.
MAX_NAMED = np.array([8, 12, 12, 8, 8, 8, 8, 8, 8], np.int32)

# Classes of each input. A row's are buckets of (total, count), in turn for other tokens and for the one that came last.
CLASSES = 256
TOTALS = (1, 2, 3, 4, 5.5, 8, 12, 19, 43)
_TOTAL_EDGES = (1, 2, 3, 4, 6, 9, 14, 24)
RATIOS = (0.015, 0.045, 0.09, 0.16, 0.25, 0.37, 0.52, 0.67, 0.82, 0.92, 0.98, 1.0)
_RATIO_EDGES = (0.03, 0.06, 0.12, 0.2, 0.3, 0.45, 0.6, 0.75, 0.88, 0.96, 0.9999)
COUNT_BUCKETS = 14
MAX_TOTAL = 63


def _count_class(count: int, total: int) -> int:
    bucket = sum(total > edge for edge in _TOTAL_EDGES)
    if count == 0 or total <= 4:
        return 2 * (bucket * COUNT_BUCKETS + count)
    return 2 * (bucket * COUNT_BUCKETS + 1 + sum(count / total >= edge for edge in _RATIO_EDGES))


COUNT_CLASS = np.array(
    [[_count_class(min(k, t), t) if t else 0 for k in range(MAX_TOTAL + 1)] for t in range(MAX_TOTAL + 1)], np.int32
)
LEVEL_OF_TOTAL = np.array([0, 0, 1, 2, 3] + [4] * 3 + [5] * 8 + [6] * 48, np.int32)

MAX_LENGTH = 64
LENGTH_BUCKET = np.array([*range(10), 9, 9] + [10] * 4 + [11] * 8 + [12] * 8 + [13] * 16 + [14] * 16 + [15], np.int32)
SET_LEVEL = np.array([0, 1, 2, 3, 3, 4, 4, 4] + [5] * 8 + [6] * 16 + [7] * 33, np.int32)

# A shorter copy is not resumed; a resumed one is dropped after this many more differences.
MIN_RESUMED = 4
MAX_DIFFERENCES = 7

# Tokens around the place where a copy met a difference, in which it may go on.
NEAR_BEHIND, NEAR_AHEAD = 8, 32
