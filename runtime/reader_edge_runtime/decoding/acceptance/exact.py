"""Exact acceptance: walk the draft tree with the target's own choices."""

from reader_edge_runtime.decoding.acceptance.verification import Choose, Emit, Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import ForwardResult


def accept_exactly(tree: DraftTree, result: ForwardResult, b: int, choose: Choose, emit: Emit) -> Verification:
    """The rule that keeps what the target says, and nothing else: it needs no more of the pass than the choices.

    Exact for greedy and sampled decoding alike: which tokens were drafted never changes which are chosen.
    """
    return walk(tree, choose, emit)


def walk(tree: DraftTree, choose: Choose, emit: Emit) -> Verification:
    """Choose one token at the root; while a child bears it, go there and choose again. See AcceptanceRule."""
    path: list[int] = [0]
    token_ids: list[int] = []
    while True:
        token_id = choose(path[-1])
        if token_id is None:
            return Verification(path, token_ids, is_undecided=True)
        token_ids.append(token_id)
        if emit(token_id):
            break
        child = tree.child(path[-1], token_id)
        if child < 0:
            break
        path.append(child)
    return Verification(path, token_ids)
