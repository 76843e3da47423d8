"""A constraint on what comes after a model has thought, where the prompt has opened its thinking part."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.decoding.choosing.constraint import Constraint
from reader_edge_runtime.draft_tree import DraftTree


class AfterThinking:
    """A `Constraint`: any token but an end while the model thinks, then another constraint."""

    def __init__(
        self, constraint: Constraint, is_end: Callable[[int], bool], vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        """is_end: gets each token of the thinking part, whether it is the last."""
        self._constraint = constraint
        self._is_end = is_end
        self._is_thinking = True
        self._thinking_mask = np.ones(vocab_size, np.bool_)
        self._thinking_mask[list(eos_token_ids)] = False

    @property
    def is_over(self) -> bool:
        return not self._is_thinking and self._constraint.is_over

    @property
    def forced(self) -> Sequence[int]:
        return () if self._is_thinking else self._constraint.forced

    def prepare(self) -> None:
        if not self._is_thinking:
            self._constraint.prepare()

    def mask(self) -> npt.NDArray[np.bool_]:
        return self._thinking_mask if self._is_thinking else self._constraint.mask()

    def advance(self, token_id: int) -> None:
        if self._is_thinking:
            self._is_thinking = not self._is_end(token_id)
        else:
            self._constraint.advance(token_id)

    def cut(self, tree: DraftTree, max_nodes: int) -> DraftTree:
        return tree.pruned(max_nodes) if self._is_thinking else self._constraint.cut(tree, max_nodes)

    def close(self) -> None:
        self._constraint.close()
