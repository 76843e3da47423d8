"""The account of drafting: nothing on credit, a share of the time, and bounds both ways."""

import pytest

from reader_edge_runtime.decoding.planning.draft_account import DraftAccount

DRAFT_S, STEP_S = 1e-4, 5e-4


def test_the_first_draft_waits_until_the_time_that_passed_pays_for_it() -> None:
    account = DraftAccount()
    num_steps = 0
    while not account.affords(DRAFT_S):
        account.pass_time(STEP_S, STEP_S)
        num_steps += 1
    assert num_steps == pytest.approx(20, abs=1)
    account.book(-DRAFT_S, STEP_S)
    assert not account.affords(DRAFT_S)


def test_a_slow_pass_pays_for_a_draft_at_once() -> None:
    account = DraftAccount()
    account.pass_time(0.025, 0.025)
    assert account.affords(2 * DRAFT_S)


def test_what_drafts_in_vain_take_stays_a_hundredth_of_the_time() -> None:
    account = DraftAccount()
    spent = passed = 0.0
    for _ in range(5000):
        if account.affords(DRAFT_S):
            account.book(-DRAFT_S, STEP_S)
            spent += DRAFT_S
        account.pass_time(STEP_S, STEP_S)
        passed += STEP_S
    assert 0.008 < spent / passed <= 0.01


def test_one_slow_draft_does_not_end_drafting_and_a_good_time_does_not_pay_for_ever() -> None:
    account = DraftAccount()
    account.book(-1.0, STEP_S)
    assert account.seconds == pytest.approx(-STEP_S)
    account.book(1.0, STEP_S)
    assert account.seconds == pytest.approx(100 * STEP_S)
