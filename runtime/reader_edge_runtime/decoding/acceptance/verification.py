"""Verification: what one pass decides about a draft tree, the seam for rules that decide it, and the exact one."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import ForwardResult

Choose = Callable[[int], int | None]
Emit = Callable[[int], bool]


class Verification(NamedTuple):
    """The walk through one tree.

    path: walked nodes, the root first; their KV rows are kept.
    token_ids: emitted tokens: those of the path below the root, then the bonus token, which becomes pending.
    is_undecided: the path's last node has no choice yet, so the bonus token is missing.
    """

    path: list[int]
    token_ids: list[int]
    is_undecided: bool = False

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


def accept_exactly(tree: DraftTree, result: ForwardResult, b: int, choose: Choose, emit: Emit) -> Verification:
    """Choose one token at the root; while a child bears it, go there and choose again.

    Exact for greedy and sampled decoding alike: which tokens were drafted never changes which are chosen.
    """
    node, path, token_ids = 0, [0], []
    while (token_id := choose(node)) is not None:
        token_ids.append(token_id)
        if emit(token_id) or (node := tree.child(node, token_id)) < 0:
            return Verification(path, token_ids)
        path.append(node)
    return Verification(path, token_ids, is_undecided=True)
