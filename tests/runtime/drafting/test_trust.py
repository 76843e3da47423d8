"""Trust: few losing drafts end belief in them, backoff grows and ends, and the next request knows."""

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.worth import Trust

WASTED, PAYING = 0.0, 10.0  # payoffs: multiples of what drafting takes
SURE = DraftTree([0, 1, 2, 3], [-1, 0, 1, 2], [""] * 4, [1.0, 0.9, 0.8, 0.7])
ACCEPTED = [0, 1, 2, 3], 1
REFUSED = [0], 9


def backoff_after(trust: Trust, longest: int, payoff_ratio: float = WASTED) -> int:
    trust.backoff_left = 0
    trust.weigh(payoff_ratio, longest)
    return trust.backoff_left


def doubting() -> Trust:
    """Drafts long promised nothing."""
    return Trust(payoff_ratio=0.0)


def test_three_refused_drafts_leave_little_trust_and_accepted_ones_restore_it() -> None:
    trust = Trust()
    assert 0.6 < trust.factor < 1
    for _ in range(3):
        trust.learn(SURE, SURE, *REFUSED)
    assert trust.factor < 0.2
    for _ in range(20):
        trust.learn(SURE, SURE, *ACCEPTED)
    assert trust.factor > 0.8


def test_a_draft_that_was_not_verified_teaches_too() -> None:
    trust, root = Trust(), DraftTree.chain([0])
    trust.learn(SURE, root, *REFUSED)
    doubted = trust.factor
    assert doubted < 0.5
    trust.learn(SURE, root, [0], 1)
    assert trust.factor > doubted


def test_backoff_doubles_up_to_the_longest_and_starts_again_after_success() -> None:
    trust = doubting()
    assert [backoff_after(trust, longest=20) for _ in range(7)] == [1, 2, 4, 8, 16, 20, 20]
    assert trust.is_wasted
    assert backoff_after(trust, longest=20, payoff_ratio=PAYING) == 0
    assert not trust.is_wasted
    assert [steps for _ in range(5) if (steps := backoff_after(trust, longest=20))] == [1, 2, 4]


def test_nobody_backs_off_while_drafts_promise_more_than_they_take_on_the_whole() -> None:
    trust = Trust()
    for _ in range(20):
        assert [backoff_after(trust, 20, payoff_ratio) for payoff_ratio in (PAYING, WASTED, WASTED, WASTED)] == [0] * 4
    few = [backoff_after(trust, 20, payoff_ratio) for _ in range(20) for payoff_ratio in (PAYING, *[WASTED] * 19)]
    assert max(few) > 0


def test_a_drafter_that_is_not_known_yet_may_fail_a_few_times() -> None:
    trust = Trust()
    backoffs = [backoff_after(trust, longest=20) for _ in range(8)]
    assert backoffs[:2] == [0, 0]
    assert backoffs[-1] > 0


def test_where_drafting_costs_nothing_nobody_backs_off() -> None:
    assert [backoff_after(doubting(), longest=0) for _ in range(10)] == [0] * 10


def test_the_next_request_neither_trusts_nor_drafts_sooner() -> None:
    trust = Trust()
    for _ in range(12):
        trust.learn(SURE, SURE, *REFUSED)
        trust.weigh(WASTED, longest=16)
    following = trust.for_next()
    assert following.payoff_ratio < 1
    assert following.factor < 0.3
    assert following.backoff_left == 16
