"""The guard: few losing drafts end belief in them, rests grow and end, and the next request knows."""

from reader_edge_runtime.decoding.acceptance.exact import Verification
from reader_edge_runtime.decoding.planning.draft_guard import DraftGuard
from reader_edge_runtime.draft_tree import DraftTree

SURE = DraftTree([0, 1, 2, 3], [-1, 0, 1, 2], [""] * 4, [1.0, 0.9, 0.8, 0.7])
ACCEPTED = Verification([0, 1, 2, 3], [1, 2, 3, 4])
REFUSED = Verification([0], [9])


def num_rests(guard: DraftGuard, longest: int) -> int:
    guard.rest(longest)
    number = 0
    while guard.takes_rest():
        number += 1
    return number


def test_three_refused_drafts_leave_little_trust_and_accepted_ones_restore_it() -> None:
    guard = DraftGuard()
    assert 0.6 < guard.trust < 1
    for _ in range(3):
        guard.learn(SURE, SURE, REFUSED)
    assert guard.trust < 0.2
    for _ in range(20):
        guard.learn(SURE, SURE, ACCEPTED)
    assert guard.trust > 0.8


def test_a_draft_that_was_not_verified_teaches_too() -> None:
    guard, root = DraftGuard(), DraftTree.chain([0])
    guard.learn(SURE, root, REFUSED)
    doubted = guard.trust
    assert doubted < 0.5
    guard.learn(SURE, root, Verification([0], [1]))
    assert guard.trust > doubted


def test_rests_double_up_to_the_longest_and_start_anew_after_success() -> None:
    guard = DraftGuard()
    assert [num_rests(guard, longest=20) for _ in range(7)] == [1, 2, 4, 8, 16, 20, 20]
    assert guard.is_in_vain
    guard.go_on()
    assert not guard.is_in_vain
    assert num_rests(guard, longest=20) == 1


def test_where_drafting_costs_nothing_nobody_rests() -> None:
    guard = DraftGuard()
    for _ in range(10):
        guard.rest(longest=0)
    assert not guard.takes_rest()


def test_the_next_request_neither_trusts_nor_drafts_sooner() -> None:
    guard = DraftGuard()
    for _ in range(5):
        guard.learn(SURE, SURE, REFUSED)
        guard.rest(longest=16)
    following = guard.for_next()
    assert following.trust < 0.3
    assert sum(following.takes_rest() for _ in range(100)) == 16
