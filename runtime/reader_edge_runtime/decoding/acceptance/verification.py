"""What one pass decided about a draft tree, and the seam for the rules that decide it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import ForwardResult

Choose = Callable[[int], int | None]
Emit = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Verification:
    """The walk through one tree.

    path: walked nodes, the root first; their KV rows are kept.
    token_ids: emitted tokens: those of the path below the root, then the bonus token, which becomes pending.
    is_undecided: the path's last node has no choice yet, so the bonus token is missing.
    """

    path: list[int]
    token_ids: list[int]
    is_undecided: bool = False

    def decided(self, token_id: int) -> "Verification":
        """The same walk with its bonus token."""
        return Verification(self.path, [*self.token_ids, token_id])

    @property
    def num_accepted_tokens(self) -> int:
        return len(self.path) - 1


class AcceptanceRule(Protocol):
    """Decides which nodes of a scored tree are kept."""

    def __call__(self, tree: DraftTree, result: ForwardResult, b: int, choose: Choose, emit: Emit) -> Verification:
        """Walk tree b of a pass.

        choose: the target's token after a node, called once per emitted token, in order; None leaves the walk
        undecided. emit: told each emitted token; True ends the walk, and the token stays pending.
        """
