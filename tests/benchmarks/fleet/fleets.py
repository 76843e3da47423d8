"""Small fleets, with links and computing that both count."""

import numpy as np

from benchmarks.fleet.costs import Costs, Round
from benchmarks.fleet.scenario import Fleet, Scenario, draw_fleet


def small_fleet(seed: int, num_users: int = 6, num_servers: int = 3, draft_s: float = 0.0) -> tuple[Fleet, Costs]:
    fleet = draw_fleet(Scenario(num_users, num_servers), seed)
    return fleet, Costs.of(fleet, Round(4e4, 1e4, np.linspace(0.02, 0.1, num_users), draft_s))
