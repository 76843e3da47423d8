"""Answers in simulated time: what is simulated by hand elsewhere, seeds, and what ways have to do with each other."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("simpy", reason="fleets need it: pip install 'reader-edge[fleet]'")
pytest.importorskip("scipy", reason="fleets need it: pip install 'reader-edge[fleet]'")

from benchmarks.fleet.answers import WIDTHS, Answer, emitted_table, read_answers
from benchmarks.fleet.comparison import compare, exact_gaps
from benchmarks.fleet.costs import Plan
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.policies import BEST, POLICIES
from benchmarks.fleet.scenario import Fleet, Scenario, draw_fleet
from benchmarks.fleet.simulation import Answered, Asked, Simulation
from benchmarks.fleet.tree_widths import TreeWidths
from benchmarks.fleet.ways import WAYS

TIMES = PassTimes.read(scale=11)
SAYS = {width: min(width, 4) for width in WIDTHS}  # tokens of a step, as far as the answer goes


def answer(num_tokens: int, server: dict[int, int] = SAYS, device: dict[int, int] = SAYS) -> Answer:
    def steps(says: dict[int, int]) -> dict[int, list[int]]:
        return {width: [min(count, num_tokens - i) for i in range(num_tokens)] for width, count in says.items()}

    return Answer("test", steps(server), steps(device))


def one_user(past: float = 512.0) -> tuple[Fleet, Plan]:
    fleet = replace(draw_fleet(Scenario(1, 1), seed=0), pasts=np.array([past]))
    return fleet, Plan(np.array([0]), np.ones(1), np.ones(1))


def answered(way: str, fleet: Fleet, plan: Plan, asked: list[list[Answer]]) -> list[Answered]:
    simulation = Simulation(fleet, plan, WAYS[way], TIMES, emitted_table([each for row in asked for each in row]))
    return simulation.run(Asked(asked, [[0.0] * len(row) for row in asked]))


def test_a_server_alone_takes_its_passes_and_a_message_each_way() -> None:
    fleet, plan = one_user()
    ways = WAYS["server alone"]
    (only,) = answered("server alone", fleet, plan, [[answer(8)]])
    width = max(ways.widths(), key=lambda width: SAYS[width] / TIMES.seconds(width, 512))
    passes_s = 8 / SAYS[width] * TIMES.seconds(width, 512) / fleet.server_speeds[0]
    assert only.seconds == pytest.approx(passes_s + 2 * 0.005 + ways.down_bits(1) / fleet.down_bit_s[0, 0])


def test_lock_step_pays_the_way_there_and_back_in_every_round_and_for_the_first_token() -> None:
    fleet, plan = one_user()
    way = WAYS["lock-step"]
    (only,) = answered("lock-step", fleet, plan, [[answer(9)]])
    width = max(way.widths(), key=lambda width: SAYS[width] / (0.01 + TIMES.seconds(width, 512)))
    rounds = 8 // SAYS[width]
    first_s = 0.01 + way.down_bits(1) / fleet.down_bit_s[0, 0]
    link_s = way.up_bits / fleet.up_bit_s[0, 0] + way.down_bits(SAYS[width]) / fleet.down_bit_s[0, 0]
    round_s = 0.01 + link_s + TIMES.seconds(width, 512) / fleet.server_speeds[0]
    assert only.seconds == pytest.approx(first_s + rounds * round_s)
    assert only.num_tokens == 9


def test_trees_are_wider_where_their_way_is_longer() -> None:
    emitted = {True: {1: 1.0, 8: 2.0, 32: 2.5}, False: {}}
    widths = [TreeWidths([1, 8, 32], TIMES, 512, emitted, beside_s).best(1, True) for beside_s in (0.0, 0.05, 5.0)]
    assert widths == sorted(widths)
    assert (widths[0], widths[-1]) == (8, 32)


def test_the_papers_device_sends_while_it_drafts_and_drafts_on_in_vain_unless_all_is_accepted() -> None:
    fleet, plan = one_user()
    way = WAYS["paper"]
    draft_s = 7 * TIMES.seconds(1, 512) / 11 / fleet.device_speeds[0]
    verify_s = TIMES.seconds(8, 512) / fleet.server_speeds[0]

    def waited_s(emitted: int) -> float:
        return float(0.01 + verify_s + way.down_bits(emitted) / fleet.down_bit_s[0, 0])

    (half,) = answered("paper", fleet, plan, [[answer(8)]])
    assert half.seconds == pytest.approx(2 * (draft_s + waited_s(4)))
    (whole,) = answered("paper", fleet, plan, [[answer(16, device={width: width for width in WIDTHS})]])
    sent_s = max(draft_s - waited_s(8), way.up_bits / fleet.up_bit_s[0, 0])
    assert whole.seconds == pytest.approx(draft_s + sent_s + 2 * waited_s(8))
    assert whole.joules > half.joules * 0.9


def test_hints_are_never_slower_than_the_server_alone_and_count_where_the_device_knows_more() -> None:
    fleet, plan = one_user()
    nothing = dict.fromkeys(WIDTHS, 1)
    for knows in (nothing, SAYS, {width: width for width in WIDTHS}):
        asked = [[answer(64, server=nothing, device=knows)]]
        alone, hinted = (answered(way, fleet, plan, asked)[0].seconds for way in ("server alone", "hints"))
        assert hinted == pytest.approx(alone) if knows is nothing else hinted < alone


def test_a_pass_takes_in_all_who_wait() -> None:
    fleet = replace(draw_fleet(Scenario(2, 1), seed=0), pasts=np.full(2, 512.0))
    plan = Plan(np.zeros(2, dtype=np.int64), np.full(2, 0.5), np.full(2, 0.5))
    nothing = dict.fromkeys(WIDTHS, 1)
    both = answered("server alone", fleet, plan, [[answer(4, nothing, nothing)], [answer(4, nothing, nothing)]])
    links_s = 2 * 0.005 + WAYS["server alone"].down_bits(1) / (0.5 * fleet.down_bit_s[:, 0])
    first_s = 4 * TIMES.seconds(2, 512) / fleet.server_speeds[0]  # they wait from the same moment
    assert sorted(each.seconds for each in both) == pytest.approx(sorted(first_s + links_s), rel=0.3)


def test_passes_beyond_the_measured_ones_go_on_along_the_last_slope() -> None:
    slope_s = TIMES.seconds(64, 512) - TIMES.seconds(63, 512)
    assert TIMES.seconds(100, 512) == pytest.approx(TIMES.seconds(64, 512) + 36 * slope_s)
    assert TIMES.seconds(8, 4096) == TIMES.seconds(8, 2048)


def test_committed_answers_are_steps_that_end_with_them() -> None:
    answers = read_answers()
    assert len({each.task for each in answers}) == 7
    for each in answers:
        for steps in (each.server, each.device):
            assert set(steps) == set(WIDTHS)
            assert set(steps[1]) == {1}
            for width, says in steps.items():
                assert all(1 <= count <= min(width, len(each) - i) for i, count in enumerate(says))


@pytest.mark.parametrize("way", WAYS)
def test_the_same_seeds_give_the_same_outcomes_and_no_policy_beats_the_bound(way: str) -> None:
    runs = [dict(compare(Scenario(8, 2), WAYS[way], POLICIES, read_answers(), 2)) for _ in range(2)]
    assert runs[0] == runs[1]
    for outcomes in runs[0].values():
        assert outcomes[0] != outcomes[1]
        assert all(outcome.gap >= -1e-6 for outcome in outcomes)
        assert all(0 < outcome.mean_s <= outcome.p95_s * 2 for outcome in outcomes)


def test_no_policy_is_better_than_the_best_of_all_associations() -> None:
    gaps = exact_gaps(WAYS["lock-step"], POLICIES, read_answers(), 2)
    assert min(min(of_policy) for of_policy in gaps.values()) >= -1e-5
    assert max(gaps["lock-step", BEST]) < 0.05
