"""Estimates of acceptance: few losing drafts end belief in them, backoff grows and ends, and the next request knows."""

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.cost_model import AcceptanceEstimate

WASTED, PAYING = 0.0, 10.0  # payoffs: multiples of what drafting takes
SURE = DraftTree([0, 1, 2, 3], [-1, 0, 1, 2], [""] * 4, [1.0, 0.9, 0.8, 0.7])
ACCEPTED = [0, 1, 2, 3], 1
REFUSED = [0], 9


def backoff_after(estimate: AcceptanceEstimate, longest: int, payoff_ratio: float = WASTED) -> int:
    estimate.backoff_left = 0
    estimate.weigh(payoff_ratio, longest)
    return estimate.backoff_left


def doubting() -> AcceptanceEstimate:
    """Drafts long promised nothing."""
    return AcceptanceEstimate(payoff_ratio=0.0)


def test_three_refused_drafts_leave_little_trust_and_accepted_ones_restore_it() -> None:
    estimate = AcceptanceEstimate()
    assert 0.6 < estimate.acceptance_factor < 1
    for _ in range(3):
        estimate.learn(SURE, SURE, *REFUSED)
    assert estimate.acceptance_factor < 0.2
    for _ in range(20):
        estimate.learn(SURE, SURE, *ACCEPTED)
    assert estimate.acceptance_factor > 0.8


def test_a_draft_that_was_not_verified_teaches_too() -> None:
    estimate, root = AcceptanceEstimate(), DraftTree.chain([0])
    estimate.learn(SURE, root, *REFUSED)
    doubted = estimate.acceptance_factor
    assert doubted < 0.5
    estimate.learn(SURE, root, [0], 1)
    assert estimate.acceptance_factor > doubted


def test_backoff_doubles_up_to_the_longest_and_starts_again_after_success() -> None:
    estimate = doubting()
    assert [backoff_after(estimate, longest=20) for _ in range(7)] == [1, 2, 4, 8, 16, 20, 20]
    assert estimate.is_wasted
    assert backoff_after(estimate, longest=20, payoff_ratio=PAYING) == 0
    assert not estimate.is_wasted
    assert [steps for _ in range(5) if (steps := backoff_after(estimate, longest=20))] == [1, 2, 4]


def test_nobody_backs_off_while_drafts_promise_more_than_they_take_on_the_whole() -> None:
    estimate = AcceptanceEstimate()
    for _ in range(20):
        assert [backoff_after(estimate, 20, payoff_ratio) for payoff_ratio in (PAYING, WASTED, WASTED, WASTED)] == [
            0
        ] * 4
    few = [backoff_after(estimate, 20, payoff_ratio) for _ in range(20) for payoff_ratio in (PAYING, *[WASTED] * 19)]
    assert max(few) > 0


def test_a_drafter_that_is_not_known_yet_may_fail_a_few_times() -> None:
    estimate = AcceptanceEstimate()
    backoffs = [backoff_after(estimate, longest=20) for _ in range(8)]
    assert backoffs[:2] == [0, 0]
    assert backoffs[-1] > 0


def test_where_drafting_costs_nothing_nobody_backs_off() -> None:
    assert [backoff_after(doubting(), longest=0) for _ in range(10)] == [0] * 10


def test_the_next_request_neither_trusts_nor_drafts_sooner() -> None:
    estimate = AcceptanceEstimate()
    for _ in range(12):
        estimate.learn(SURE, SURE, *REFUSED)
        estimate.weigh(WASTED, longest=16)
    following = estimate.for_next()
    assert following.payoff_ratio < 1
    assert following.acceptance_factor < 0.3
    assert following.backoff_left == 16
