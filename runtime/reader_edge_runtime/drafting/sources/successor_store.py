"""The target's best successors of tokens and pairs, in arrays of bounded size."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.draft_tree import ScoredTree
from reader_edge_runtime.drafting.kernels import successors
from reader_edge_runtime.drafting.kernels.arrays import Int32Array, Int64Array, Successors
from reader_edge_runtime.drafting.kernels.layout import LEVELS
from reader_edge_runtime.errors import DraftError

_FIRST_TOKENS = 1 << 10
_NONE_BEFORE = (-1,) * successors.NUM_BEFORE


class SuccessorStore:
    """What the target said when a token, and a pair of tokens, was last scored.

    max_pairs: pairs that are kept, rounded up to a power of two; with 0 nothing is ever learned.
    arrays: as kernels/successors.py lays them out; replaced when the first grows, to the highest token id seen.
    """

    def __init__(self, max_pairs: int) -> None:
        self.max_pairs = max_pairs
        num_rows = 1 << (max(max_pairs, successors.WAYS) - 1).bit_length() if max_pairs else successors.WAYS
        num_tokens = _FIRST_TOKENS if max_pairs else 0
        self.arrays = Successors(*(np.zeros((num, successors.RECORD), np.int32) for num in (num_tokens, num_rows)))

    def learn(self, scored: ScoredTree, text: Sequence[int]) -> None:
        """Record the target's best successors of a tree's nodes. text: the request's, to the tree's root at least."""
        if not self.max_pairs:
            return
        token_ids = np.array(scored.tree.token_ids, np.int64)
        parents = np.array(scored.tree.parents, np.int64)
        newest_first = text[max(0, scored.root - successors.NUM_BEFORE) : scored.root][::-1]
        before: Int64Array = np.array([*newest_first, *_NONE_BEFORE][: successors.NUM_BEFORE], np.int64)
        learned = 0
        while True:
            scores = (scored.rows.start + learned, scored.top_ids[learned:], scored.top_logits[learned:])
            learned += successors.learn(self.arrays, token_ids, parents, before, *scores)
            if learned == len(scored.rows):
                break
            self._grow(int(token_ids.max()))

    def restore(self, after_token: Int32Array, after_pair: Int32Array, vocab_size: int) -> None:
        """Take up the arrays of another store. Raises DraftError for ones that kernels could not walk."""
        if after_pair.shape != self.arrays.after_pair.shape or len(after_token) > max(_FIRST_TOKENS, 2 * vocab_size):
            raise DraftError("Recorded successors are of another draft configuration: start anew.")
        for records in (after_token, after_pair):
            num_named = records[:, successors.NUM_AND_LEVEL] // LEVELS
            is_named = np.arange(successors.MAX_SUCCESSORS) < num_named[:, None]
            named = records[:, successors.NAMED : successors.NUMBERS][is_named]
            is_counted = (num_named >= 0) & (num_named <= successors.MAX_SUCCESSORS)
            if not (np.all(is_counted) and np.all((named >= 0) & (named < vocab_size))):
                raise DraftError("Recorded successors are not sound: start anew.")
        self.arrays = Successors(after_token, after_pair)

    def _grow(self, token_id: int) -> None:
        grown: Int32Array = np.zeros((1 << token_id.bit_length(), successors.RECORD), np.int32)
        grown[: len(self.arrays.after_token)] = self.arrays.after_token
        self.arrays = self.arrays._replace(after_token=grown)
