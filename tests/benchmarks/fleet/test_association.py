"""Who talks to which server: rules, the solver, and every association there is."""

from itertools import product

import numpy as np
import pytest

from benchmarks.fleet.association import computing_servers, exchanged_servers, random_servers, strongest_servers
from benchmarks.fleet.costs import shared
from tests.benchmarks.fleet.fleets import small_fleet

SEEDS = pytest.mark.parametrize("seed", range(5))


@SEEDS
def test_an_exchange_keeps_numbers_equal_and_no_pair_would_rather_change_places(seed: int) -> None:
    fleet, costs = small_fleet(seed, num_users=9)
    servers = exchanged_servers(fleet, costs)
    assert np.bincount(servers).tolist() == [3, 3, 3]
    seconds = shared(costs, servers, True).seconds(costs).sum()
    for one, other in product(range(9), repeat=2):
        changed = servers.copy()
        changed[[one, other]] = servers[[other, one]]
        assert shared(costs, changed, True).seconds(costs).sum() >= seconds - 1e-9


def test_rules_take_what_they_are_named_after() -> None:
    fleet, _ = small_fleet(seed=2, num_users=40)
    assert (fleet.gains_db[np.arange(40), strongest_servers(fleet)] == fleet.gains_db.max(axis=1)).all()
    counts = np.bincount(computing_servers(fleet), minlength=3)
    a_user = fleet.server_speeds / counts
    assert a_user.max() <= (fleet.server_speeds / np.maximum(counts - 1, 1)).min()  # nobody would have more elsewhere
    drawn = [random_servers(fleet, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


@SEEDS
def test_the_mixed_integer_program_finds_the_best_of_all_associations(seed: int) -> None:
    pytest.importorskip("scipy", reason="fleets need it: pip install 'reader-edge[fleet]'")
    from benchmarks.fleet.solver import solved_exactly

    _, costs = small_fleet(seed)
    totals = [shared(costs, np.array(servers), False).seconds(costs).sum() for servers in product(range(3), repeat=6)]
    solution = solved_exactly(costs)
    assert solution.seconds == pytest.approx(min(totals), rel=1e-5)
    assert shared(costs, solution.servers, False).seconds(costs).sum() == pytest.approx(solution.seconds)
    assert solution.bound_s <= min(totals) + 1e-9


@SEEDS
def test_the_relaxed_program_bounds_what_it_rounds(seed: int) -> None:
    pytest.importorskip("scipy", reason="fleets need it: pip install 'reader-edge[fleet]'")
    from benchmarks.fleet.solver import moved, solved, solved_exactly, total_s

    _, costs = small_fleet(seed)
    rounded, exact = solved(costs), solved_exactly(costs)
    assert rounded.bound_s <= exact.seconds + 1e-9
    assert exact.seconds <= rounded.seconds + 1e-9
    assert rounded.seconds <= 1.05 * exact.seconds
    assert np.array_equal(moved(costs, exact.servers), exact.servers)
    start = np.zeros(6, dtype=np.int64)
    assert total_s(costs, moved(costs, start)) < total_s(costs, start)
