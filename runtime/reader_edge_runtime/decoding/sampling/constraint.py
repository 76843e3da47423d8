"""The interface of constraints on an answer: a grammar, a list of choices, a tool's schema.

A constraint masks tokens before one is chosen, in plain and in drafted decoding alike, so both say the same. What it
forbids is cut from a draft before the pass; what it forces is drafted for nothing.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.draft_tree import DraftTree


class Constraint(Protocol):
    """Which tokens one request may say next; it follows the answer token by token."""

    @property
    def is_over(self) -> bool:
        """Whether nothing may come next but an end."""

    @property
    def forced(self) -> Sequence[int]:
        """Tokens that come next, as the vocabulary's longest would spell what must come."""

    def prepare(self) -> None:
        """Begin to find out what `mask` will return; never waits."""

    def mask(self) -> npt.NDArray[np.bool_]:
        """(V,): the tokens that may come next; at least one."""

    def advance(self, token_id: int) -> None:
        """The answer went on with this token."""

    def cut(self, tree: DraftTree, max_nodes: int) -> DraftTree:
        """What it leaves of a draft, and tokens that it forces, of at most max_nodes nodes; it stays where it is."""

    def close(self) -> None:
        """The request has ended. Further calls do nothing."""


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
