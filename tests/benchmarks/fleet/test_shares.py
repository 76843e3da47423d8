"""Shares of band and computing: they are all of a server, and no others take less time."""

import numpy as np
import pytest

from benchmarks.fleet.costs import Plan, shared
from benchmarks.fleet.shares import band_shares, uniform_shares, work_shares
from reader_edge_runtime.arrays import Float64Array
from tests.benchmarks.fleet.fleets import small_fleet

# Drafts that hide no sending, all of it, and some of it.
DRAFTS = pytest.mark.parametrize("draft_s", [[0.0, 0.0, 0.0], [9.0, 9.0, 9.0], [0.0, 0.2, 0.9], [0.3, 0.3, 0.3]])


def sending_s(shares: Float64Array, link_s: Float64Array, draft_s: Float64Array) -> float:
    return float(np.maximum(draft_s, link_s / shares).sum())


def grid(step: float = 0.01) -> list[Float64Array]:
    """All shares of three users in steps."""
    count = round(1 / step)
    return [
        np.array([i, j, count - i - j]) * step for i in range(1, count) for j in range(1, count - i) if i + j < count
    ]


@DRAFTS
def test_no_shares_of_the_band_take_less_time(draft_s: list[float]) -> None:
    link_s, drafts_s = np.array([0.05, 0.1, 0.4]), np.array(draft_s)
    shares = band_shares(link_s, drafts_s)
    least_s = min(sending_s(others, link_s, drafts_s) for others in grid())
    assert shares.sum() == pytest.approx(1)
    assert sending_s(shares, link_s, drafts_s) <= least_s + 1e-9


def test_no_shares_of_computing_take_less_time() -> None:
    work_s = np.array([0.01, 0.04, 0.3])
    shares = work_shares(work_s)
    assert shares.sum() == pytest.approx(1)
    assert (work_s / shares).sum() == pytest.approx(np.sqrt(work_s).sum() ** 2)
    assert (work_s / shares).sum() <= min((work_s / others).sum() for others in grid())


@DRAFTS
def test_the_bisection_agrees_with_a_general_solver(draft_s: list[float]) -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="fleets need it: pip install 'reader-edge[fleet]'")
    link_s, drafts_s = np.array([0.05, 0.1, 0.4]), np.array(draft_s)
    found = optimize.minimize(  # the seconds of each user are variables too, so that nothing has a kink
        lambda x: x[3:].sum(),
        np.concatenate([uniform_shares(3), np.full(3, 10.0)]),
        method="SLSQP",
        bounds=[(1e-3, 1)] * 3 + [(each, None) for each in drafts_s],
        constraints=[
            {"type": "eq", "fun": lambda x: x[:3].sum() - 1},
            {"type": "ineq", "fun": lambda x: x[3:] * x[:3] - link_s},
        ],
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert sending_s(band_shares(link_s, drafts_s), link_s, drafts_s) == pytest.approx(found.fun, rel=1e-4)


@pytest.mark.parametrize("is_uniform", [True, False])
def test_the_users_of_a_server_share_all_of_it(is_uniform: bool) -> None:
    _, costs = small_fleet(seed=3, num_users=9, draft_s=0.05)
    servers = np.array([0, 0, 0, 2, 2, 1, 2, 0, 2])
    plan = shared(costs, servers, is_uniform)
    for shares in (plan.band, plan.work):
        assert np.bincount(servers, shares) == pytest.approx([1, 1, 1])
        assert (shares > 0).all()


def test_best_shares_are_never_worse_than_equal_ones() -> None:
    for seed in range(20):
        _, costs = small_fleet(seed, num_users=9, draft_s=0.02 * (seed % 3))
        servers = np.random.default_rng(seed).integers(3, size=9)
        equal, best = (shared(costs, servers, is_uniform).seconds(costs).sum() for is_uniform in (True, False))
        assert best <= equal + 1e-9


def test_a_round_takes_what_is_sent_or_drafted_and_the_pass() -> None:
    _, costs = small_fleet(seed=1, num_users=2, draft_s=0.01)
    plan = Plan(np.array([0, 2]), np.array([0.5, 0.25]), np.array([0.2, 1.0]))
    seconds = plan.seconds(costs)
    for user, server in enumerate((0, 2)):
        sending = max(costs.draft_s[user], costs.link_s[user, server] / plan.band[user])
        assert seconds[user] == pytest.approx(sending + costs.work_s[user, server] / plan.work[user])
