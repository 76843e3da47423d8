"""Second passes are planned over slow links, for a request that is alone, and leave what is learned of first ones."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.planning.pass_time_model import PassTimeModel
from reader_edge_runtime.decoding.planning.planner import Planner, StepPlan
from reader_edge_runtime.decoding.planning.two_pass_planner import Split, TwoPassPlanner, best_splits, second_wait
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.stats import StepTimes
from reader_edge_runtime.target import PipelinedTarget, Target
from tests.hybrid_states import random_tree
from tests.runtime.decoding.planning.planning_cases import NOTHING, PASTS, WIDTHS, a_request
from tests.stages_here import pipeline_here, stages_of

# 0 -> 1 -> 2 -> 3, and 0 -> 4
TREE = DraftTree([5, 6, 7, 8, 9], [-1, 0, 1, 2, 0], ["", *"aaaa"], [1.0, 0.6, 0.5, 0.4, 0.3])
STEEP = np.array([np.inf, 4.0, 10.0, 16.0, 22.0, 28.0])


def test_splits_go_by_where_nodes_are_gone_into_and_what_was_measured() -> None:
    assert second_wait(np.array(8.0), np.array([4.0, 8.0, 12.0]), 2).tolist() == [2.0, 4.0, 8.0]
    assert second_wait(np.array(9.0), np.array([3.0, 12.0]), 3).tolist() == [1.0, 6.0]
    one, best = best_splits(TREE, np.array(TREE.values), STEEP, 40.0, 0.0, 2)
    assert (best.num_first, best.num_second) == (1, 3)
    assert best.rate == pytest.approx((1 + 0.6 + 0.5 + 0.4) / (4 + 40 + 0.6 * (16 - 2)))
    assert (one.num_first, one.num_second) == (5, 0)
    assert one.rate == pytest.approx(2.8 / (28 + 40))
    one, best = best_splits(DraftTree.root(5), np.ones(1), STEEP, 40.0, 0.0, 2)
    assert one == best == Split(1, 0, 1.0, 44.0)
    tree = DraftTree(list(range(9)), [-1, *[0] * 8], [""] * 9, [1.0, *[0.9] * 8])
    _, best = best_splits(tree, np.array(tree.values), np.array([np.inf, 4.0, 4.1, 4.2, 4.3]), 400.0, 0.0, 2)
    assert (best.num_first, best.num_second) == (4, 4)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_split_promises_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, 14, 900)
    for node in range(1, 14):
        tree.values[node] = tree.values[tree.parents[node]] * rng.uniform(0.2, 1)
    gains = np.array([1.0, *(0.7 * value for value in tree.values[1:])])
    worked_s = np.array([np.inf, *rng.uniform(3, 30, 10).cumsum()])
    rest_s, behind_s, num_stages = rng.uniform(0, 100), rng.uniform(0, 5), int(rng.integers(2, 5))
    order = tree.best_first()

    def rate(num_first: int, num_second: int) -> float:
        first, second = order[:num_first], order[num_first : num_first + num_second]
        seconds = worked_s[num_first] + rest_s
        if second:
            entered = sum(gains[node] for node in second if tree.parents[node] in first)
            seconds += behind_s + entered * second_wait(worked_s[num_first], worked_s[num_second], num_stages)
        return float(sum(gains[node] for node in [*first, *second]) / seconds)

    one, best = best_splits(tree, gains, worked_s, rest_s, behind_s, num_stages)
    both = [(a, b) for a, b in itertools.product(range(1, 11), range(11)) if a + b <= 14]
    assert best.rate == pytest.approx(max(rate(*each) for each in both))
    assert best.rate == pytest.approx(rate(best.num_first, best.num_second))
    assert one.rate == pytest.approx(max(rate(num, 0) for num in range(1, 11)))


SplitDemo = Callable[[int], Path]
LINKS_S = 0.04
ROOM = 500


def measured(links_s: float, node_s: float) -> PassCost:
    """Stages that work for 10 ms and some more a node, and links."""
    row = np.array([links_s + 0.01 + node_s * (width - 1) for width in WIDTHS])
    return PassCost(1, PASTS, WIDTHS, np.stack([row, row]))


def two_pass_planner(links_s: float = LINKS_S, node_s: float = 0.001) -> TwoPassPlanner:
    planner = TwoPassPlanner(cast(PipelinedTarget, SimpleNamespace(links_s=links_s, num_stages=2)), max_width=16)
    planner.take(measured(links_s, node_s))
    planner.overheads = replace(NOTHING)
    return planner


def branches(num_nodes: int) -> DraftTree:
    """Two likely tokens, and below each of them a chain that soon is unlikely."""
    tree = DraftTree([3], [-1], [""], [1.0])
    for value, token_id in ((0.5, 4), (0.4, 5)):
        node = tree.add(token_id, 0, "test", value)
        for depth in range(1, (num_nodes + 1) // 2):
            node = tree.add(token_id + depth, node, "test", value * 0.8**depth)
    return tree.pruned(num_nodes)


def planned(planner: Planner, requests: Sequence[Request] | None = None, room: int = ROOM) -> StepPlan:
    def draft(draft_requests: dict[int, DraftRequest]) -> dict[int, DraftTree]:
        return {b: branches(each.max_nodes) for b, each in draft_requests.items()}

    return planner.plan(requests or [a_request()], [50] * len(requests or [0]), room, draft)


def test_less_likely_nodes_go_behind_in_a_tree_of_both() -> None:
    planner = two_pass_planner()
    made = planned(planner)
    [tree], draft = made.trees, made.drafts[0]
    assert 1 <= made.num_first < len(tree) == made.width <= len(draft) == 16
    tree.check(3, 900, 32)
    assert min(tree.values[: made.num_first]) >= max(tree.values[made.num_first :])
    assert sorted(tree.values, reverse=True) == sorted(draft.values, reverse=True)[: len(tree)]
    assert made.saved_s[0] > 0


def test_drafts_grow_to_what_both_passes_hold_and_one_pass_never_does() -> None:
    planner = two_pass_planner(links_s=1.0)
    plans = [planned(planner) for _ in range(4)]
    assert planner.max_drafted == planner.max_nodes == 32
    assert [len(made.drafts[0]) for made in plans] == [16, 32, 32, 32]
    assert all(max(made.num_first, made.width - made.num_first) <= 16 for made in plans)
    one_box = Planner(max_width=16)
    one_box.take(measured(1.0, 0.001))
    assert [len(planned(one_box).drafts[0]) for _ in range(4)] == [16] * 4


@pytest.mark.parametrize(
    "why", ["nodes that cost nothing", "little hope", "other microbatches", "context", "batch", "unmeasured"]
)
def test_no_second_pass_where_it_does_not_pay_or_keeps_others_waiting(why: str) -> None:
    planner = two_pass_planner(node_s=0.0 if why == "nodes that cost nothing" else 0.001)
    planner.is_alone = why != "other microbatches"
    if why == "unmeasured":
        planner.times = PassTimeModel(planner.times.max_width)
    requests = [a_request() for _ in range(1 + (why == "batch"))]
    requests[0].estimate.predicted += 1000 * (why == "little hope")
    made = planned(planner, requests, 16 if why == "context" else ROOM)
    assert (made.num_first, bool(made.drafts), made.width > 1) == (0, True, why != "little hope")


def steps(planner: TwoPassPlanner, num_steps: int, more_s: float, verify_s: float = 0.0) -> list[bool]:
    """Which of so many drafted steps have two passes, each of which takes so much longer than was measured."""
    request, is_two, before = a_request(max_tokens=9000), list[bool](), planner.times.seconds([50])
    for _ in range(num_steps):
        made = planned(planner, [request])
        is_two.append(made.num_first > 0)
        seconds = before[made.num_first or made.width] + more_s * is_two[-1]
        planner.settle(made, [request], StepTimes(forward_s=seconds, verify_s=verify_s), [Verification([0], [31])])
        request.estimate = a_request().estimate
    return is_two


def test_steps_of_one_pass_remain_so_that_their_times_stay_known() -> None:
    planner = two_pass_planner()
    before = planner.times.seconds([50])
    assert 0.9 < sum(steps(planner, 200, 0.0)) / 200 < 0.97
    assert planner.times.seconds([50]) == pytest.approx(before)


def test_second_passes_answer_for_no_choice_of_tokens() -> None:
    """Grammars and log-probabilities take their time in steps of one pass as well."""
    assert steps(two_pass_planner(), 200, 0.0, verify_s=0.03) == steps(two_pass_planner(), 200, 0.0)


@pytest.mark.long
def test_second_passes_that_are_in_the_way_end_and_are_tried_again() -> None:
    planner = two_pass_planner()
    before = planner.times.seconds([50])
    is_two = steps(planner, 600, 0.03)
    assert is_two[0]
    assert 0 < sum(is_two[20:]) < 15
    assert planner.times.seconds([50]) == pytest.approx(before)  # of steps with one pass
    assert sum(steps(planner, 2000, 0.0)[-100:]) > 90


def test_the_wait_for_a_second_pass_that_is_used_is_expected() -> None:
    planner, request = two_pass_planner(), a_request()
    for _ in range(30):
        made = planned(planner, [request])
        worked_s = [0.01 + 0.001 * (num - 1) for num in (made.num_first, made.width - made.num_first)]
        wait_s = max(worked_s[1] / 2, worked_s[1] - worked_s[0] / 2) + 0.001
        first_s = planner.times.seconds([50])[made.num_first]
        token_ids = [made.trees[0].token_ids[made.num_first], 31]
        walked = Verification([0, made.num_first], token_ids, waited_s=wait_s)
        planner.settle(made, [request], StepTimes(forward_s=first_s), [walked])
    assert planner._behind_s == pytest.approx(0.001, rel=0.1)


def _answers(
    target: Target, num_together: int, on_step: Callable[[int], object] = lambda num_left: None
) -> list[list[int]]:
    """Of four requests, so many at once. on_step: gets after each step how many were left before it."""
    decoder = make_decoder(target, RetrievalDrafter(DraftConfig()).wait(), EngineConfig(threads=1))
    decoder.planner.take(measured(LINKS_S, 0.002))
    found, numbers = list[list[int]](), iter(range(4))
    while several := list(itertools.islice(numbers, num_together)):
        config = GenerationConfig(max_tokens=40, ignores_eos=True)
        requests = [decoder.submit([5, 6, 7, 8 + n] * 6, config) for n in several]
        while num_left := sum(request.is_running for request in requests):
            decoder.step()
            on_step(num_left)
        found += [request.output_token_ids for request in requests]
    return found


@pytest.mark.parametrize("num_together", [1, 4])
def test_only_lanes_that_are_alone_send_second_passes(
    num_together: int, split_demo: SplitDemo, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PipelineTarget, "links_s", LINKS_S)
    monkeypatch.setattr(PipelineTarget, "num_microbatches", 4)
    monkeypatch.setattr(PipelineTarget, "num_stages", 4)
    piped, settle = pipeline_here(split_demo(2)), TwoPassPlanner.settle
    is_waited, is_entered = list[bool](), list[bool]()

    def settled(
        planner: TwoPassPlanner,
        plan: StepPlan,
        requests: Sequence[Request],
        times: StepTimes,
        accepted: Sequence[Verification | None],
        proposal_s: float,
    ) -> None:
        for walked in accepted:
            assert walked is not None
            is_waited.append(walked.waited_s > 0)
            is_entered.append(bool(plan.num_first) and max(walked.path) >= plan.num_first)
        settle(planner, plan, requests, times, accepted, proposal_s)

    monkeypatch.setattr(TwoPassPlanner, "settle", settled)
    frames, nums_left = stages_of(piped).frames, list[int]()

    def stepped(num_left: int) -> None:
        nums_left.extend([num_left] * (len(frames) - len(nums_left)))

    found = _answers(piped, num_together, stepped)
    assert is_waited == is_entered
    assert found == _answers(HostTarget.open(ModelPackage.open(demo_folder), 1), num_together)
    wanted = [PassFrame.unpacked(memoryview(frame)).wanted for frame in frames]
    behind = [num_left for each, num_left in zip(wanted, nums_left, strict=True) if each.num_before]
    assert set(behind) <= {1}  # the last of several may be alone for a while
    assert behind or num_together > 1
    assert max(len(each.trees[0]) for each in wanted) <= 128
