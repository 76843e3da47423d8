"""The target's best successors of tokens and pairs, in arrays of bounded size."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.draft_tree import ScoredTree
from reader_edge_runtime.drafting.kernels import successors
from reader_edge_runtime.drafting.kernels.arrays import Int32Array, Int64Array, Successors
from reader_edge_runtime.drafting.kernels.layout import LEVELS
from reader_edge_runtime.drafting.kernels.successors import (
    MAX_SUCCESSORS,
    NAMED,
    NUM_AND_LEVEL,
    NUM_BEFORE,
    NUMBERS,
    RECORD,
    WAYS,
)
from reader_edge_runtime.errors import DraftError

_FIRST_TOKENS = 1 << 10


class SuccessorStore:
    """What the target said when a token, and a pair of tokens, was scored lately; kernels/successors.py has the layout.

    after_token, after_pair: the arrays; the first is replaced when it grows, to the highest token id seen.
    arrays: both, what kernels take a store as.
    """

    def __init__(self, max_pairs: int) -> None:
        """max_pairs: pairs that are kept, rounded up to a power of two; with 0 nothing is ever learned."""
        self.max_pairs = max_pairs
        num_rows = 1 << (max(max_pairs, WAYS) - 1).bit_length() if max_pairs else WAYS
        self.after_token: Int32Array = np.zeros((_FIRST_TOKENS if max_pairs else 0, RECORD), np.int32)
        self.after_pair: Int32Array = np.zeros((num_rows, RECORD), np.int32)
        self.arrays = Successors(self.after_token, self.after_pair)

    @property
    def num_bytes(self) -> int:
        return self.after_token.nbytes + self.after_pair.nbytes

    def learn(self, scored: ScoredTree, text: Sequence[int]) -> None:
        """Record the target's best successors of a tree's nodes. text: the request's, to the tree's root at least."""
        if not self.max_pairs:
            return
        token_ids = np.array(scored.tree.token_ids, np.int64)
        parents = np.array(scored.tree.parents, np.int64)
        before: Int64Array = np.full(NUM_BEFORE, -1, np.int64)
        newest_first = text[max(0, scored.root - NUM_BEFORE) : scored.root][::-1]
        before[: len(newest_first)] = newest_first
        learned = 0
        while True:
            scores = (scored.rows.start + learned, scored.top_ids[learned:], scored.top_logits[learned:])
            learned += successors.learn(self.arrays, token_ids, parents, before, *scores)
            if learned == len(scored.rows):
                break
            self._grow(int(token_ids.max()))

    def restore(self, after_token: Int32Array, after_pair: Int32Array, vocab_size: int) -> None:
        """Take up the arrays of another store. Raises DraftError for ones that kernels could not walk."""
        if after_pair.shape != self.after_pair.shape or len(after_token) > max(_FIRST_TOKENS, 2 * vocab_size):
            raise DraftError("Recorded successors are of another draft configuration: start anew.")
        for records in (after_token, after_pair):
            num_named = records[:, NUM_AND_LEVEL] // LEVELS
            is_named = np.arange(MAX_SUCCESSORS) < num_named[:, None]
            named = records[:, NAMED:NUMBERS][is_named]
            if np.any((num_named < 0) | (num_named > MAX_SUCCESSORS)) or np.any((named < 0) | (named >= vocab_size)):
                raise DraftError("Recorded successors are not sound: start anew.")
        self.after_token, self.after_pair = after_token, after_pair
        self.arrays = Successors(self.after_token, self.after_pair)

    def _grow(self, token_id: int) -> None:
        grown: Int32Array = np.zeros((1 << token_id.bit_length(), RECORD), np.int32)
        grown[: len(self.after_token)] = self.after_token
        self.after_token = grown
        self.arrays = Successors(self.after_token, self.after_pair)
