"""The seam for constraints on an answer: a grammar, a list of choices, a tool's schema.

A constraint masks tokens before one is chosen, in plain and in drafted decoding alike, so both say the same. What it
forbids is cut from a draft before the pass; what it forces is drafted for nothing.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.draft_tree import DraftTree

_SOURCE = "constraint"


class Constraint(Protocol):
    """Which tokens one request may say next; it follows the answer token by token."""

    @property
    def is_over(self) -> bool:
        """Whether nothing may come next but an end."""

    def mask(self) -> npt.NDArray[np.bool_]:
        """(V,): the tokens that may come next; at least one."""

    def advance(self, token_id: int) -> None:
        """The answer went on with this token."""

    def num_allowed(self, token_ids: list[int]) -> int:
        """How many of these tokens, in order, may come next. The constraint itself stays where it is."""

    def forced(self) -> list[int]:
        """Tokens that must come next, in order; empty where there is a choice."""


def constrained(tree: DraftTree, constraint: Constraint, max_nodes: int) -> DraftTree:
    """What a constraint leaves of a draft, and the tokens it forces, of at most max_nodes nodes."""
    kept = DraftTree.root(tree.token_ids[0])
    node = 0
    for token_id in constraint.forced()[: max_nodes - 1]:
        node = kept.add(token_id, node, _SOURCE)
    numbers = {0: 0}
    paths: dict[int, list[int]] = {0: []}
    for old in range(1, len(tree)):
        parent, token_id = tree.parents[old], tree.token_ids[old]
        if parent not in numbers:
            continue
        path = [*paths[parent], token_id]
        known = kept.child(numbers[parent], token_id)
        if known < 0 and len(kept) < max_nodes and constraint.num_allowed(path) == len(path):
            known = kept.add(token_id, numbers[parent], tree.sources[old], tree.values[old])
        if known > 0:
            numbers[old], paths[old] = known, path
    return kept
