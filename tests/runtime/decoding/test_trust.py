"""Trust: few losing drafts end belief in them, rests grow and end, and the next request knows."""

from reader_edge_runtime.decoding.acceptance import Verification
from reader_edge_runtime.decoding.planning.trust import Trust
from reader_edge_runtime.draft_tree import DraftTree

SURE = DraftTree([0, 1, 2, 3], [-1, 0, 1, 2], [""] * 4, [1.0, 0.9, 0.8, 0.7])
ACCEPTED = Verification([0, 1, 2, 3], [1, 2, 3, 4])
REFUSED = Verification([0], [9])


def rested(trust: Trust, longest: int) -> int:
    trust.rest(longest)
    return trust.rest_left


def test_three_refused_drafts_leave_little_trust_and_accepted_ones_restore_it() -> None:
    trust = Trust()
    assert 0.6 < trust.factor < 1
    for _ in range(3):
        trust.learn(SURE, SURE, REFUSED)
    assert trust.factor < 0.2
    for _ in range(20):
        trust.learn(SURE, SURE, ACCEPTED)
    assert trust.factor > 0.8


def test_a_draft_that_was_not_verified_teaches_too() -> None:
    trust, root = Trust(), DraftTree.chain([0])
    trust.learn(SURE, root, REFUSED)
    doubted = trust.factor
    assert doubted < 0.5
    trust.learn(SURE, root, Verification([0], [1]))
    assert trust.factor > doubted


def test_rests_double_up_to_the_longest_and_start_anew_after_success() -> None:
    trust = Trust()
    assert [rested(trust, longest=20) for _ in range(7)] == [1, 2, 4, 8, 16, 20, 20]
    assert trust.is_in_vain
    trust.num_vain = 0
    assert not trust.is_in_vain
    assert rested(trust, longest=20) == 1


def test_where_drafting_costs_nothing_nobody_rests() -> None:
    assert [rested(Trust(), longest=0) for _ in range(10)] == [0] * 10


def test_the_next_request_neither_trusts_nor_drafts_sooner() -> None:
    trust = Trust()
    for _ in range(5):
        trust.learn(SURE, SURE, REFUSED)
        trust.rest(longest=16)
    following = trust.for_next()
    assert following.factor < 0.3
    assert following.rest_left == 16
