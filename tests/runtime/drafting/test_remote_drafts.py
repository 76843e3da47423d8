"""What a device left is taken for the text that it was drafted for, and for no other."""

import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting import remote_drafts
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts, RemoteTree, TextCheck

TEXT = [1, 2, 3]


def tree(*branches: list[int], root: int = 3) -> DraftTree:
    made = DraftTree.root(root)
    for branch in branches:
        node = 0
        for token_id in branch:
            known = made.child(node, token_id)
            node = known if known > 0 else made.add(token_id, node, "device", made.values[node] / 2)
    return made


def test_a_hint_follows_the_text_along_any_of_its_branches() -> None:
    drafts = RemoteDrafts()
    assert drafts.hint(TEXT, 9) is None
    drafts.leave(RemoteTree(3, tree([4, 5, 6], [7, 8])))
    assert drafts.is_ready(TEXT)  # nobody waits for hints
    first = drafts.hint(TEXT, 9)
    assert first is not None
    assert first.token_ids == [3, 4, 5, 6, 7, 8]
    below = drafts.hint([*TEXT, 4], 9)
    assert below is not None
    assert (below.token_ids, below.values) == ([4, 5, 6], [1, 0.5, 0.25])
    assert drafts.hint([*TEXT, 4], 1) is None  # nothing below the root
    assert drafts.hint([*TEXT, 4, 9], 9) is None
    assert drafts.hint([*TEXT, 4, 9, 5], 9) is None
    drafts.leave(RemoteTree(5, tree([8], root=9)))  # one that comes in the middle
    found = drafts.hint([*TEXT, 4, 9], 9)
    assert found is not None
    assert found.token_ids == [9, 8]


@pytest.mark.parametrize("hint", [RemoteTree(0, tree([4])), RemoteTree(9, tree([4])), RemoteTree(2, tree([4]))])
def test_a_hint_of_another_text_says_nothing(hint: RemoteTree) -> None:
    drafts = RemoteDrafts()
    drafts.leave(hint)
    assert drafts.hint(TEXT, 9) is None


def test_trees_of_other_texts_are_dropped_and_of_too_many_the_last() -> None:
    drafts = RemoteDrafts(is_lockstep=True)
    changes = []
    drafts.on_change = lambda: changes.append(True)
    check = TextCheck(TEXT).value
    for position, root, its_check in ((3, 3, check + 1), (4, 3, check), (3, 5, check)):
        drafts.leave(RemoteTree(position, tree([4], root=root), its_check))
    assert not drafts.is_ready(TEXT)
    for token_id in range(20):
        drafts.leave(RemoteTree(3, tree([token_id, 9]), check))
    assert drafts.is_ready(TEXT)
    assert drafts.take_tree(2).token_ids == [3, 0]  # its most valuable nodes
    assert [drafts.take_tree(9).token_ids[1] for _ in range(7)] == list(range(1, 8))
    assert not drafts.is_ready(TEXT)
    assert len(changes) == 23


def test_where_drafts_may_change_answers_the_root_alone_is_verified() -> None:
    drafts = RemoteDrafts(is_lockstep=True)
    drafts.leave(RemoteTree(3, tree([4]), TextCheck(TEXT).value))
    drafts.forbid()
    assert drafts.is_ready(TEXT)
    assert len(drafts.take_tree(9)) == 1


def test_who_hears_nothing_of_a_device_for_long_gives_up_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    drafts = RemoteDrafts(is_lockstep=True)
    now = 7.0
    assert not drafts.is_away(TEXT)
    now += remote_drafts.AWAY_S
    assert not drafts.is_away(TEXT)
    now += 0.1
    assert drafts.is_away(TEXT)
    drafts.leave(RemoteTree(3, tree([4]), TextCheck(TEXT).value))
    assert not drafts.is_away(TEXT)
    drafts.hold()
    assert drafts.is_away(TEXT)
    drafts.go_on()
    assert not drafts.is_away(TEXT)
    assert not drafts.is_ready(TEXT)  # what was left before may be of another device


def test_hints_hold_where_the_device_is_away() -> None:
    drafts = RemoteDrafts()
    drafts.hold()
    assert drafts.is_away(TEXT)
    drafts.go_on()
    assert not drafts.is_away(TEXT)
