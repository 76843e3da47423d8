"""A drafter that makes verification work hard: it knows the answer and hides it among wrong branches."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.draft_tree import DraftTree

_MAX_NODES = 40
_MAX_RIGHT = 12


class StressDrafter:
    """Random trees that hold the plain answer's continuation, 0 to 12 tokens of it, scattered among random siblings
    and dead-end branches.

    So accepted paths are long, their KV rows lie apart and must be moved, and every tree also holds rejections.
    answers: token ids of a prompt -> token ids that plain decoding gives; the same seed gives the same trees.
    """

    is_ready = True

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]], vocab_size: int, seed: int = 0) -> None:
        self._answers = answers
        self._vocab_size = vocab_size
        self._random = np.random.Generator(np.random.Philox(seed))

    def begin(self, prompt_token_ids: Sequence[int]) -> "StressRequest":
        return StressRequest(self._answers[tuple(prompt_token_ids)], self._vocab_size, self._random)

    def forget(self) -> None:
        """Nothing was learned: the answers are given."""


class StressRequest:
    """One request of a StressDrafter."""

    num_harvested_rows = 3  # so that a prompt's end is read at more than one row

    def __init__(self, answer: Sequence[int], vocab_size: int, random: np.random.Generator) -> None:
        self._answer = answer
        self._vocab_size = vocab_size
        self._random = random
        self._num_emitted = 0
        self._pending = -1

    def draft(self, max_nodes: int, max_depth: int) -> DraftTree:
        num_right = min(int(self._random.integers(_MAX_RIGHT + 1)), max_depth)
        right = list(self._answer[self._num_emitted : self._num_emitted + num_right])
        tree = DraftTree.root(self._pending)
        depths = [0]
        last_right = 0
        for _ in range(min(max_nodes, _MAX_NODES) - 1):
            if right and self._random.random() < 0.4:
                last_right = _child(tree, depths, last_right, right.pop(0), "right")
                continue
            parent = int(self._random.integers(len(tree)))
            if depths[parent] < max_depth:
                _child(tree, depths, parent, int(self._random.integers(self._vocab_size)), "wrong")
        return tree

    def observe(self, tree: DraftTree, token_ids: Sequence[int]) -> None:
        self._num_emitted += len(token_ids)
        self._pending = token_ids[-1]

    def learn_successors(
        self,
        tree: DraftTree,
        rows: range,
        before_ids: list[int],
        top_ids: npt.NDArray[np.int64],
        top_logits: npt.NDArray[np.float32],
    ) -> None:
        """Nothing to learn: the answer is known."""

    def finish(self) -> None:
        """Nothing is kept for later requests."""


def _child(tree: DraftTree, depths: list[int], parent: int, token_id: int, source: str) -> int:
    """The child of `parent` that bears the token, added where there is none: siblings must differ."""
    known = tree.child(parent, token_id)
    if known >= 0:
        return known
    depths.append(depths[parent] + 1)
    return tree.add(token_id, parent, source)
