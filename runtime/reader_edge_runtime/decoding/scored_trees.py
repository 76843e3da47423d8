"""What a step has scored: its trees, of which a second pass may hold further nodes, looked at if need be."""

import time
from collections.abc import Sequence

from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import PassBehind


class ScoredTrees:
    """trees, result: B trees as far as they are scored, and what the target said of all their nodes.

    whole: the one tree with the nodes of a second pass as well; behind: that pass, which is under way.
    waited_s: seconds that it was waited for.
    """

    waited_s = 0.0

    def __init__(
        self,
        trees: Sequence[DraftTree],
        result: ForwardResult,
        whole: DraftTree | None = None,
        behind: PassBehind | None = None,
    ) -> None:
        self.trees = trees
        self.result = result
        self._whole = whole
        self._behind = behind

    def enter(self, walked: Verification) -> int:
        """The node of the second pass in which a walk through the first goes on, -1 for none.

        Where there is one, the pass is waited for, and its nodes are scored from now on. Raises ProviderError.
        """
        if self._whole is None or self._behind is None:
            return -1
        node = self._whole.child(walked.path[-1], walked.token_ids[-1])
        if node >= 0:
            started = time.perf_counter()
            self.result = self.result.joined(self._behind.result())
            self.waited_s = time.perf_counter() - started
            self.trees, self._behind = [self._whole], None
        return node

    def close(self) -> None:
        """Have nobody wait for a second pass that was not entered."""
        if self._behind is not None:
            self._behind.drop()
            self._behind = None
