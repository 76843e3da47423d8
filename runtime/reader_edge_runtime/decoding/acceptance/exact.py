"""Verification: walk the draft tree with the target's own choices."""

from collections.abc import Callable
from dataclasses import dataclass

from reader_edge_runtime.draft_tree import DraftTree


@dataclass(frozen=True, slots=True)
class Verification:
    """What one pass decided.

    path: walked nodes, the root first; their KV rows are kept.
    token_ids: emitted tokens: those of the path below the root, then the bonus token, which becomes pending.
    is_undecided: the path's last node has no choice yet, so the bonus token is missing.
    """

    path: list[int]
    token_ids: list[int]
    is_undecided: bool = False

    def decided(self, token_id: int) -> "Verification":
        """The same with its bonus token."""
        return Verification(self.path, [*self.token_ids, token_id])

    @property
    def num_accepted_tokens(self) -> int:
        return len(self.path) - 1


def verify(
    tree: DraftTree,
    choose: Callable[[int], int | None],
    is_last: Callable[[int], bool],
) -> Verification:
    """Choose one token at the root; while a child bears it, go there and choose again.

    choose: the target's token after a node, called once per emitted token, in order; None ends the walk undecided.
    is_last: told each emitted token; True ends the walk, and the token stays pending.
    Exact for greedy and sampled decoding alike: which tokens were drafted never changes which are chosen.
    """
    path: list[int] = [0]
    token_ids: list[int] = []
    while True:
        token_id = choose(path[-1])
        if token_id is None:
            return Verification(path, token_ids, is_undecided=True)
        token_ids.append(token_id)
        if is_last(token_id):
            break
        child = tree.child(path[-1], token_id)
        if child < 0:
            break
        path.append(child)
    return Verification(path, token_ids)
