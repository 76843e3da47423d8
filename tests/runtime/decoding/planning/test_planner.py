"""The planner: the width with the most expected tokens per second, and no drafting where it loses."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.draft_hints import DraftHints
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestDrafter
from reader_edge_runtime.drafting.payoff import Overheads
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.stats import StepTimes
from tests.fake_target import make_manifest
from tests.runtime.decoding.planning.planning_cases import (
    NOTHING,
    PASTS,
    WIDTHS,
    a_request,
    chain_of,
    choose,
    cost,
    plan,
    planner_of,
    settle,
)


@given(
    values=st.lists(st.lists(st.floats(0, 1), min_size=0, max_size=15), min_size=1, max_size=3),
    growth=st.floats(0, 1),
    step=st.floats(0, 0.02),
    past=st.integers(1, 200),
)
def test_choice_is_the_best_of_all_widths(values: list[list[float]], growth: float, step: float, past: int) -> None:
    trees = [[1.0, *each] for each in values]
    planner = planner_of(cost(growth, batch_size=len(trees), step=step))
    times = planner.times.seconds([past] * len(trees))

    def rate(width: int) -> float:
        return sum(sum(sorted(tree, reverse=True)[:width]) for tree in trees) / times[width]

    chosen = choose(planner, *trees, past=past)
    best = max(rate(width) for width in range(1, max(map(len, trees)) + 1))
    if chosen > 1:
        assert rate(chosen) == pytest.approx(best)
    else:
        assert rate(1) >= best / 1.03  # no wider pass promises 2 % more


def test_trees_shrink_as_the_past_grows_where_attention_takes_more_of_each_node() -> None:
    """Memory gives the weights in 100 ms, behind which products of a few nodes take nothing."""
    pasts = (64, 512, 2048)
    seconds = np.array([[0.1 + 0.001 * n + past * (1e-6 + 2e-6 * n) for n in WIDTHS] for past in pasts])
    planner = planner_of(PassCost(1, pasts, WIDTHS, seconds))
    values = [0.9**depth for depth in range(16)]
    chosen = [choose(planner, values, past=past) for past in (100, 2000, 8000, 32_000)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] == 16
    assert chosen[-1] <= 6


def test_where_padding_costs_as_much_as_nodes_strong_evidence_sets_the_width_and_weak_does_not_pay() -> None:
    strong, weak = [1.0, 0.95, 0.9, 0.9, 0.85, 0.8, 0.8, 0.75], [1.0, 0.01, 0.01]
    planner = planner_of(cost(growth=0.02, batch_size=4), overheads=replace(NOTHING, draft_s=1e-3))
    requests = [a_request() for _ in range(4)]
    widths, saved_s = planner.choose(requests, [chain_of(each) for each in (weak, strong, weak, weak)], [50] * 4)
    assert widths == [8] * 4
    assert [each > planner.overheads.draft_s for each in saved_s] == [False, True, False, False]
    assert planner.choose(requests, [chain_of(weak)] * 4, [50] * 4)[0] == [1] * 4


def test_the_fuller_the_batch_the_fewer_nodes_and_none_before_they_cost_anything() -> None:
    def seconds(num_rows: int) -> float:
        return max(10e-3, num_rows * 0.5e-3)  # reading weights, until twenty rows take as long

    values = [1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2]
    batches = (1, 2, 4, 8, 16, 32)
    widths = (*WIDTHS, 32, 64)
    row = np.array([seconds(width) for width in widths])
    planner = planner_of(PassCost(1, PASTS, widths, np.stack([row, row])), overheads=replace(NOTHING, draft_s=0.1e-3))
    chosen = [choose(planner, *[values] * batch_size) for batch_size in batches]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] == len(values)
    assert chosen[-1] == 1
    for batch_size, width in zip(batches, chosen, strict=True):
        gained = sum(values[:width]) / (seconds(batch_size * width) + batch_size * 0.1e-3)
        assert width == 1 or gained > 1 / seconds(batch_size)
    full = [a_request() for _ in range(32)]
    made = plan(planner, full, values)
    assert made.width == 1
    for _ in range(10):
        settle(planner, plan(planner, full, values), full)
    assert all(request.estimate.backoff_left > 0 for request in full)
    assert not plan(planner, full, values).drafts


@pytest.mark.parametrize(("batch_size", "is_drafting"), [(2, True), (16, True), (24, False), (32, False)])
def test_even_drafts_that_come_true_end_where_the_batch_is_full(batch_size: int, is_drafting: bool) -> None:
    """From 20 rows on a node takes as long as the token it would save."""

    def seconds(width: int) -> float:
        return max(10e-3, batch_size * width * 0.5e-3)

    random, sure, draft_s = np.random.default_rng(0), 0.95, 0.1e-3
    row = np.array([seconds(width) for width in WIDTHS])
    planner = planner_of(PassCost(batch_size, PASTS, WIDTHS, np.stack([row, row])))
    requests = [a_request(max_tokens=4000) for _ in range(batch_size)]
    num_tokens, spent, widths = 0, 0.0, list[int]()
    for _ in range(300):
        planner.overheads = replace(NOTHING, draft_s=draft_s)
        made = plan(planner, requests, [sure**depth for depth in range(8)])
        paths = [list(range(1 + min(len(tree) - 1, random.geometric(1 - sure) - 1))) for tree in made.trees]
        accepted = [
            Verification(path, [*(tree.token_ids[node] for node in path[1:]), 31])
            for path, tree in zip(paths, made.trees, strict=True)
        ]
        num_tokens += sum(map(len, paths))
        spent += seconds(made.width) + len(made.drafts) * draft_s
        widths.append(made.width)
        planner.settle(made, requests, StepTimes(forward_s=seconds(made.width)), accepted)
    assert num_tokens / spent > 0.98 * batch_size / seconds(1)  # nobody is slower for what was tried
    assert (sum(width > 1 for width in widths[10:]) > 250) == is_drafting
    assert is_drafting or max(widths[10:]) == 1


def test_a_drafter_that_lies_is_found_out_within_a_few_steps_and_so_knows_the_next_request() -> None:
    planner = planner_of(cost(growth=0.2))
    request = a_request(is_believed=False)
    widths = []
    for _ in range(20):
        made = plan(planner, [request], [1.0, 0.9, 0.9, 0.9, 0.9])
        widths.append(made.width)
        settle(planner, made, [request])
    assert widths[0] == 5
    assert widths[6:] == [1] * 14
    planner.end(request, seconds=0.0)
    following = a_request(is_believed=False)
    following.estimate = planner.begin()
    assert plan(planner, [following], [1.0, 0.9, 0.9, 0.9, 0.9]).width == 1


def test_what_steps_take_beside_their_pass_is_learned_and_what_starting_takes_apart() -> None:
    overheads = Overheads(1e-4, 1e-4, 1e-4, 1e-4)
    for _ in range(100):
        overheads.learn_step(2e-3, batch_size=1, num_drafts=0, num_first_drafts=0)
        overheads.learn_step(5e-3, batch_size=1, num_drafts=1, num_first_drafts=0)
        overheads.learn_step(9e-3, batch_size=1, num_drafts=1, num_first_drafts=1)
        overheads.learn_finish(6e-3)
    assert overheads.plain_s == pytest.approx(2e-3, rel=0.1)
    assert overheads.draft_s == pytest.approx(3e-3, rel=0.1)
    assert overheads.start_s == pytest.approx(4e-3, rel=0.1)
    assert overheads.finish_s == pytest.approx(6e-3, rel=0.1)


def test_sources_that_draft_only_where_they_pay_make_nobody_back_off() -> None:
    planner, requests = planner_of(cost(0.02), overheads=Overheads(0.0, 1e-4, 0.0, 0.0)), [a_request()]
    for _ in range(20):
        made = plan(planner, requests, [1.0, 0.5, 0.4])
        settle(planner, made, requests, proposal_s=8e-3, draft_s=8.1e-3)
        requests[0].estimate.accepted = requests[0].estimate.predicted
    assert planner.overheads.draft_s == pytest.approx(1e-4)
    assert requests[0].stats.num_backoff_steps == 0


def test_a_long_run_of_drafted_steps_is_interrupted_to_measure_a_plain_one() -> None:
    planner, requests = planner_of(cost(growth=0.0)), [a_request(max_tokens=400)]
    widths = []
    for _ in range(200):
        requests[0].estimate.accepted = requests[0].estimate.predicted  # believed for ever
        made = plan(planner, requests, [1.0, 0.9])
        widths.append(made.width)
        settle(planner, made, requests)
    first = widths.index(1)
    assert 30 < first < 100
    assert widths[first + 1] == 2


def test_the_more_requests_the_narrower_their_widest_draft() -> None:
    planner = planner_of(replace(cost(growth=0.0, batch_size=32), padding_share=0.0))
    requested: list[int] = []

    def draft(draft_requests: dict[int, DraftRequest]) -> dict[int, DraftTree]:
        requested.extend(draft_request.max_nodes for draft_request in draft_requests.values())
        return {}

    for num_requests in (1, 32, 200):
        planner.plan([a_request() for _ in range(num_requests)], [50] * num_requests, 100, draft)
    assert requested == [16] + [4] * 32  # of 200, none drafts


def test_without_a_measurement_sure_nodes_are_drafted_and_unlikely_ones_are_not() -> None:
    planner = Planner(max_width=16)
    assert choose(planner, [1.0, 0.9, 0.8, 0.7]) == 4
    assert choose(planner, [1.0, 0.01, 0.005]) == 1


def test_whether_drafting_starts_goes_by_what_is_left_and_how_well_it_paid() -> None:
    planner = planner_of(cost(growth=0.0), overheads=Overheads(0.0, 1e-3, 2e-3, 1e-3))
    planner.overheads.plain_s = 0.0
    short, long = a_request(max_tokens=8, is_believed=False), a_request(max_tokens=40, is_believed=False)
    made = plan(planner, [short, long], [1.0, 0.9])
    assert list(made.drafts) == [1]
    short.has_drafted = True  # what starting takes was spent
    assert len(plan(planner, [short], [1.0, 0.9]).drafts) == 1
    planner = planner_of(cost(growth=0.0), overheads=Overheads(0.0, 1e-3, 15e-3, 0.0))
    doubted, believed = (a_request(max_tokens=40, is_believed=False) for _ in range(2))
    doubted.estimate.payoff_ratio, believed.estimate.payoff_ratio = 1.0, 10.0
    assert plan(planner, [doubted], [1.0, 0.9]).drafts == {}
    assert list(plan(planner, [believed], [1.0, 0.9]).drafts) == [0]


def test_a_start_that_was_slow_once_is_tried_again_until_drafting_is_back() -> None:
    planner = planner_of(cost(growth=0.0), overheads=Overheads(0.0, 1e-4, 1e-3, 0.0))
    planner.overheads.start_s = 0.02  # beside other work, which is over
    num_drafted = []
    for _ in range(400):
        request = a_request(max_tokens=16, is_believed=False)
        for _ in range(15):
            made = plan(planner, [request], [1.0, 0.9])
            is_start = bool(made.drafts) and not request.has_drafted
            settle(planner, made, [request], draft_s=1e-3 if is_start else 1e-4 * len(made.drafts))
        num_drafted.append(request.has_drafted)
    assert not any(num_drafted[:10])
    assert all(num_drafted[-20:])


@pytest.mark.parametrize("room", [0, 1])
def test_nothing_is_drafted_where_the_context_holds_no_more(room: int) -> None:
    assert plan(planner_of(cost(growth=0.0)), [a_request()], [1.0, 0.9], room).drafts == {}


def test_prompt_rows_are_read_where_what_they_save_is_worth_their_time() -> None:
    request = Request([1] * 100, GenerationConfig(), make_manifest())
    pass_s = float(cost(growth=0.1).pass_seconds(PASTS[0])[8])
    cheap = planner_of(replace(cost(growth=0.1), row_s=0.99 * pass_s / 150))
    dear = planner_of(replace(cost(growth=0.1), row_s=1.01 * pass_s / 150))
    assert cheap.prompt_rows(request, 70, 30, 64) == range(29, 30)  # nobody drafts
    request.drafter = cast(RequestDrafter, object())
    assert Planner().prompt_rows(request, 70, 30, 64) == cheap.prompt_rows(request, 70, 30, 64) == range(30)
    assert cheap.prompt_rows(request, 0, 70, 64) == range(36, 70)
    assert cheap.prompt_rows(request, 0, 30, 64) == range(29, 30)  # not the prompt's end
    assert dear.prompt_rows(request, 70, 30, 64) == range(29, 30)
    request.estimate.num_backoffs = 7
    assert Planner().prompt_rows(request, 70, 30, 64) == range(29, 30)
    planner = planner_of(replace(cost(growth=0.1), row_s=0.0), overheads=Overheads(start_s=0.004, finish_s=0.0))
    short, long = a_request(max_tokens=6, is_believed=False), a_request(max_tokens=100, is_believed=False)
    assert planner.prompt_rows(short, 0, 3, 64) == range(2, 3)
    assert planner.prompt_rows(long, 0, 3, 64) == range(3)


def test_a_draft_that_does_not_pay_for_itself_is_verified_and_leads_to_a_backoff() -> None:
    planner = planner_of(cost(growth=0.0), overheads=replace(NOTHING, draft_s=5e-3))
    requests = [a_request()]
    requests[0].estimate.payoff_ratio = 1.0
    made = plan(planner, requests, [1.0, 0.2])
    assert made.width == 2
    assert made.saved_s == [pytest.approx(0.2 * planner.times.seconds([50])[1])]  # less than the draft took
    settle(planner, made, requests)
    made = plan(planner, requests, [1.0, 0.2])
    assert (made.width, made.backing_off, made.drafts) == (1, [0], {})


@pytest.mark.parametrize("is_repeating", [False, True])
def test_one_that_backs_off_drafts_again_as_soon_as_its_text_repeats_itself(is_repeating: bool) -> None:
    planner, requests = planner_of(cost(growth=0.0)), [a_request()]
    requests[0].estimate.backoff_left = 1000
    num_drafts = 0
    for number in range(20):
        requests[0].token_ids.append(number % 5 if is_repeating else number)
        made = plan(planner, requests, [1.0, 0.9])
        settle(planner, made, requests)
        num_drafts += len(made.drafts)
    assert (num_drafts > 0) == is_repeating


@pytest.mark.parametrize(
    ("draft_s", "has_paid", "is_begun"), [(1e-4, False, True), (8e-3, False, False), (8e-3, True, True)]
)
def test_where_drafts_take_long_a_request_begins_plainly_unless_they_paid_before(
    draft_s: float, has_paid: bool, is_begun: bool
) -> None:
    planner = planner_of(cost(growth=0.0), overheads=replace(NOTHING, draft_s=draft_s))
    before = a_request()
    before.estimate.payoff_ratio = 5.0 if has_paid else 1.0
    planner.end(before, seconds=0.0)
    request = a_request(max_tokens=400)
    request.estimate = planner.begin()
    assert bool(plan(planner, [request], [1.0, 0.9]).drafts) == is_begun


def test_before_its_first_draft_a_text_must_repeat_itself_for_longer_to_make_up_for_the_start() -> None:
    planner = planner_of(cost(growth=0.0), overheads=replace(NOTHING, start_s=0.02))
    repeated = []
    for has_drafted in (False, True):
        request = a_request(max_tokens=400, is_believed=has_drafted)
        request.estimate.backoff_left = 1000
        while request.estimate.backoff_left:
            request.token_ids.append(len(request.token_ids) % 20)
            settle(planner, plan(planner, [request], [1.0]), [request])
        repeated.append(len(request.token_ids))
    assert repeated[0] - repeated[1] >= 2


def test_what_trees_promise_to_save_is_their_tokens_time_without_what_their_nodes_add_to_the_pass() -> None:
    planner = planner_of(replace(cost(growth=0.1, batch_size=2), padding_share=0.0))
    requests = [a_request(), a_request()]
    trees = [chain_of([1.0, 0.9, 0.9, 0.9]), chain_of([1.0, 0.9])]
    widths, saved_s = planner.choose(requests, trees, [10] * len(trees))
    pass_s = planner.times.seconds([10] * 2)
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
        return planner._longest_backoff(plan(planner, requests, [1.0, 0.1]).pasts)

    assert max_backoff(8) == 8 * max_backoff(1) > 0


@pytest.mark.parametrize(("batch_size", "num_backoffs", "is_begun"), [(1, 3, True), (8, 0, True), (8, 3, False)])
def test_after_futile_drafts_one_begins_where_no_other_pays(batch_size: int, num_backoffs: int, is_begun: bool) -> None:
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


def test_a_short_answer_gets_no_drafter_but_now_and_then_or_where_more_is_known() -> None:
    planner = planner_of(cost(growth=0.1), overheads=replace(NOTHING, start_s=2e-3))
    short, long = a_request(max_tokens=6, is_believed=False), a_request(max_tokens=100, is_believed=False)
    assert (planner.may_begin(short), planner.may_begin(long)) == (False, True)
    for _ in range(40):  # plain steps of 15 ms, of which half a percent is saved for a try
        settle(planner, plan(planner, [short], [], room=1), [short])
    assert planner.may_begin(short)
    planner = planner_of(cost(growth=0.1), overheads=replace(NOTHING, start_s=2e-3))
    config, hints = GenerationConfig(max_tokens=6), DraftHints([[1, 2]])
    assert planner.may_begin(Request([1, 2, 3], config, make_manifest(), hints=hints))
