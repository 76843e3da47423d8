"""The seam for constraints on an answer: a grammar, a list of choices, a tool's schema.

A constraint masks tokens before one is chosen, in plain and in drafted decoding alike, so both say the same. What it
forbids is cut from a draft before the pass; what it forces is drafted for nothing.
"""

from collections.abc import Sequence
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
        """Tokens that come next, as the vocabulary's longest would spell what must be said."""

    def prepare(self) -> None:
        """Begin to find out what `mask` will be asked for; never waits."""

    def mask(self) -> npt.NDArray[np.bool_]:
        """(V,): the tokens that may come next; at least one."""

    def advance(self, token_id: int) -> None:
        """The answer went on with this token."""

    def cut(self, tree: DraftTree, max_nodes: int) -> DraftTree:
        """What it leaves of a draft, and tokens that it forces, of at most max_nodes nodes; it stays where it is."""

    def close(self) -> None:
        """The request has ended. Further calls do nothing."""
