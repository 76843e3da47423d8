"""What a constraint holds begins where the model has thought: until then all but an end may come."""

import numpy as np

from reader_edge_runtime.decoding.choosing.constraint import AfterThinking
from reader_edge_runtime.draft_tree import DraftTree
from tests.runtime.decoding.choosing.test_constraint import VOCAB, Cycle

END = 7  # of thinking


def test_a_constraint_is_asked_nothing_before_the_thinking_part_ends() -> None:
    asked: list[str] = []

    class Watched(Cycle):
        def prepare(self) -> None:
            asked.append("prepare")

    inner = Watched(3)
    constraint = AfterThinking(inner, END.__eq__, VOCAB, [0])
    tree = DraftTree.chain([2, 1, 1, 1])
    constraint.prepare()
    for token_id in (1, 5):
        assert np.flatnonzero(~constraint.mask()).tolist() == [0]
        assert (constraint.is_over, constraint.forced, constraint.cut(tree, 2)) == (False, (), tree.pruned(2))
        constraint.advance(token_id)
    assert (asked, inner._last) == ([], 3)
    constraint.advance(END)
    constraint.prepare()
    assert (asked, inner._last) == (["prepare"], 3)
    assert constraint.mask().tolist() == inner.mask().tolist()
    assert constraint.forced == inner.forced == [4, 5]
    constraint.advance(4)
    assert inner._last == 4
    constraint.close()
    assert inner.is_closed
