"""Policies on the same fleets with the same questions, seed by seed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.fleet.answers import Answer, Emitted, emitted_table
from benchmarks.fleet.costs import Costs
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.policies import Case, Policy
from benchmarks.fleet.scenario import Scenario, draw_fleet
from benchmarks.fleet.simulation import Asked, Simulation
from benchmarks.fleet.solver import solved_exactly, total_s
from benchmarks.fleet.ways import Way

SMALL = 10, 3  # users and servers of which the best association is found
_NUM_ASKED = 1  # answers of each user


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one fleet. mean_s, p95_s: of its answers. joules: of a device for an answer, in the mean. gap: of the planned
    rounds above the bound, as a share of it."""

    mean_s: float
    p95_s: float
    joules: float
    gap: float


Cell = tuple[str, int, int, str]  # way, users, servers, policy


def compare(
    scenario: Scenario, way: Way, policies: Mapping[str, Policy], answers: Sequence[Answer], num_seeds: int
) -> Iterator[tuple[Cell, list[Outcome]]]:
    """A cell for each policy, with an outcome for each seed."""
    times, emitted = PassTimes.read(scenario.pass_scale), emitted_table(answers)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in policies}
    for seed in range(num_seeds):
        case = planned_case(scenario, way, emitted, seed)
        least_s = case.bound_s
        asked = Asked.draw(answers, scenario.num_users, _NUM_ASKED, seed)
        for name, policy in policies.items():
            plan = policy(case)
            answered = Simulation(case.fleet, plan, way, times, emitted).run(asked)
            seconds = [each.seconds for each in answered]
            gap = float(plan.seconds(case.costs).sum()) / least_s - 1
            joules = float(np.mean([each.joules for each in answered]))
            outcomes[name].append(Outcome(float(np.mean(seconds)), float(np.percentile(seconds, 95)), joules, gap))
    for name, of_policy in outcomes.items():
        yield (way.name, scenario.num_users, scenario.num_servers, name), of_policy


def exact_gaps(
    way: Way, policies: Mapping[str, Policy], answers: Sequence[Answer], num_seeds: int
) -> dict[tuple[str, str], list[float]]:
    """Way and policy -> by which share planned rounds take longer than the best association's, one a small fleet.

    Counted is what is sent and computed, with the best shares: what is drafted meanwhile hides part of either.
    """
    emitted = emitted_table(answers)
    gaps: dict[tuple[str, str], list[float]] = {(way.name, name): [] for name in policies}
    for seed in range(num_seeds):
        case = planned_case(Scenario(*SMALL), way, emitted, seed)
        least_s = solved_exactly(case.costs).seconds
        for name, policy in policies.items():
            gaps[way.name, name].append(total_s(case.costs, policy(case).servers) / least_s - 1)
    return gaps


def planned_case(scenario: Scenario, way: Way, emitted: Emitted, seed: int) -> Case:
    """A fleet and what its rounds are expected to cost."""
    fleet = draw_fleet(scenario, seed)
    costs = Costs.of(fleet, way.round(fleet, PassTimes.read(scenario.pass_scale), emitted))
    return Case(fleet, costs, seed)
