"""Backoff: who drafted without gain of late pauses, and what starting again may take."""

from dataclasses import replace

import pytest

from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.draft_hints import DraftHints
from tests.fake_target import make_manifest
from tests.runtime.decoding.planning.planning_cases import NOTHING, a_request, chain_of, cost, plan, planner_of, settle


def test_a_draft_that_does_not_pay_for_itself_is_verified_and_leads_to_a_backoff() -> None:
    planner = planner_of(cost(growth=0.0), overheads=replace(NOTHING, draft_s=5e-3))
    requests = [a_request()]
    requests[0].estimate.payoff_ratio = 1.0
    made = plan(planner, requests, [1.0, 0.2])
    assert made.width == 2
    assert made.saved_s == [pytest.approx(0.2 * planner.times.seconds(1, 50)[1])]  # less than the draft took
    settle(planner, made, requests)
    made = plan(planner, requests, [1.0, 0.2])
    assert (made.width, made.backing_off, made.drafts) == (1, [0], {})


def test_what_trees_promise_to_save_is_their_tokens_time_without_what_their_nodes_add_to_the_pass() -> None:
    planner = planner_of(replace(cost(growth=0.1, batch_size=2), padding_share=0.0))
    requests = [a_request(), a_request()]
    trees = [chain_of([1.0, 0.9, 0.9, 0.9]), chain_of([1.0, 0.9])]
    widths, saved_s = planner.choose(requests, trees, past=10)
    pass_s = planner.times.seconds(2, 10)
    assert max(widths) == 4
    assert sum(saved_s) == pytest.approx(3.6 * pass_s[1] / 2 - (pass_s[3] - pass_s[1]))
    assert saved_s[0] == pytest.approx(3 * saved_s[1])


def test_backoffs_are_shorter_the_less_drafting_takes_of_a_pass() -> None:
    def max_backoff(draft_s: float) -> int:
        planner, requests = planner_of(cost(growth=1.0)), [a_request()]
        backoffs = [0]
        for _ in range(400):
            planner.overheads = replace(NOTHING, draft_s=draft_s)
            made = plan(planner, requests, [1.0, 0.1])
            settle(planner, made, requests)
            assert made.width == 1
            backoffs.append(backoffs[-1] + 1 if made.backing_off else 0)
        return max(backoffs)

    assert max_backoff(1e-6) == 0
    assert 0 < max_backoff(1e-4) < max_backoff(1e-3)


def test_a_futile_draft_costs_all_who_wait_for_it_so_backoffs_are_longer_in_a_batch() -> None:
    def max_backoff(batch_size: int) -> int:
        planner = planner_of(cost(growth=1.0, batch_size=batch_size), overheads=replace(NOTHING, draft_s=1e-3))
        requests = [a_request() for _ in range(batch_size)]
        for request in requests[1:]:
            request.estimate.backoff_left = 1000  # one alone drafts
        return planner._longest_backoff(len(requests), plan(planner, requests, [1.0, 0.1]).past)

    assert max_backoff(8) == 8 * max_backoff(1) > 0


@pytest.mark.parametrize(("batch_size", "num_backoffs", "is_begun"), [(1, 3, True), (8, 0, True), (8, 3, False)])
def test_where_drafts_were_futile_of_late_one_begins_only_where_others_need_not_pay_for_it(
    batch_size: int, num_backoffs: int, is_begun: bool
) -> None:
    overheads = replace(NOTHING, start_s=10e-3)  # a fiftieth of 50 steps
    planner = planner_of(cost(growth=0.1, batch_size=batch_size), overheads=overheads)
    requests = [a_request(is_believed=False) for _ in range(batch_size)]
    for request in requests:
        request.estimate.num_backoffs = num_backoffs
    assert bool(plan(planner, requests, [1.0, 0.9]).drafts) == is_begun


def test_wasted_starts_take_half_a_percent_of_a_batchs_time() -> None:
    overheads = replace(NOTHING, start_s=1e-3)
    planner = planner_of(cost(growth=0.1, batch_size=8), overheads=overheads)
    num_begun = 0
    for _ in range(200):  # of 15 ms
        requests = [a_request(is_believed=False) for _ in range(8)]
        for request in requests:
            request.estimate.num_backoffs = 3
        made = plan(planner, requests, [1.0, 0.01])
        num_begun += len(made.drafts)
        settle(planner, made, requests, draft_s=1e-3 * len(made.drafts))
    assert 10 <= num_begun <= 16


def test_an_answer_too_short_to_make_up_for_a_start_gets_no_drafter_but_is_tried_now_and_then() -> None:
    planner = planner_of(cost(growth=0.1), overheads=replace(NOTHING, start_s=2e-3))
    short, long = a_request(max_tokens=6, is_believed=False), a_request(max_tokens=100, is_believed=False)
    assert (planner.may_begin(short), planner.may_begin(long)) == (False, True)
    for _ in range(40):  # plain steps of 15 ms, of which half a percent is saved for a try
        settle(planner, plan(planner, [short], [], room=1), [short])
    assert planner.may_begin(short)


def test_a_short_answer_of_which_more_is_known_gets_a_drafter() -> None:
    planner = planner_of(cost(growth=0.1), overheads=replace(NOTHING, start_s=2e-3))
    config, hints = GenerationConfig(max_tokens=6), DraftHints([[1, 2]])
    assert planner.may_begin(Request([1, 2, 3], config, make_manifest(), hints=hints))
