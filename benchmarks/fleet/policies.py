"""Policies that are compared: who talks to which server, and how its band and computing are divided."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from benchmarks.fleet.association import computing_servers, exchanged_servers, random_servers, strongest_servers
from benchmarks.fleet.costs import Costs, Plan, shared
from benchmarks.fleet.scenario import Fleet
from benchmarks.fleet.solver import Solution, solved
from reader_edge_runtime.arrays import Int64Array


@dataclass(frozen=True)
class Case:
    """What a policy plans for. seed: of what it leaves to chance."""

    fleet: Fleet
    costs: Costs
    seed: int

    @cached_property
    def exchanged(self) -> Int64Array:
        """Each user's server by the paper's exchange."""
        return exchanged_servers(self.fleet, self.costs)

    @cached_property
    def solution(self) -> Solution:
        """The solver's association."""
        return solved(self.costs)

    @property
    def bound_s(self) -> float:
        """What no plan's rounds go below, all together: all that is sent takes its time, or all that is drafted."""
        if not self.costs.draft_s.any():
            return self.solution.bound_s
        free = replace(self.costs, link_s=np.zeros_like(self.costs.link_s))
        return max(self.solution.bound_s, float(self.costs.draft_s.sum()) + solved(free).bound_s)


Policy = Callable[[Case], Plan]

BASELINES = ("random", "strongest", "computing")  # the paper's
BEST = "solver, best shares"
POLICIES: dict[str, Policy] = {
    "random": lambda case: shared(case.costs, random_servers(case.fleet, np.random.default_rng(case.seed)), True),
    "strongest": lambda case: shared(case.costs, strongest_servers(case.fleet), True),
    "computing": lambda case: shared(case.costs, computing_servers(case.fleet), True),
    "exchange": lambda case: shared(case.costs, case.exchanged, True),
    "exchange, best shares": lambda case: shared(case.costs, case.exchanged, False),
    BEST: lambda case: shared(case.costs, case.solution.servers, False),
}
