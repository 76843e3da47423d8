"""What a learner of shares sees, is rewarded for, and learns."""

import numpy as np
import pytest

pytest.importorskip("benchmarl", reason="the learner needs it: pip install 'reader-edge[fleet-learner]'")

import torch
from tensordict import TensorDict

from benchmarks.fleet.answers import emitted_table, read_answers
from benchmarks.fleet.comparison import Outcome, planned_case
from benchmarks.fleet.costs import shared
from benchmarks.fleet.learner.games import NUM_SEEN, Games, plan_of, seen
from benchmarks.fleet.learner.page import page
from benchmarks.fleet.learner.training import DECISIONS_AT_ONCE, SharesEnv, trained
from benchmarks.fleet.policies import Case
from benchmarks.fleet.scenario import Scenario
from benchmarks.fleet.ways import WAYS
from reader_edge_runtime.arrays import Float64Array


def cases(users: int = 30, servers: int = 4) -> list[Case]:
    emitted = emitted_table(read_answers())
    return [planned_case(Scenario(users, servers), WAYS["paper, rows"], emitted, seed) for seed in range(2)]


def best_wishes(case: Case) -> Float64Array:
    plan = shared(case.costs, case.exchanged, False)
    return np.log(np.stack([plan.band, plan.work], axis=1))


def test_wishes_are_shares_and_equal_wishes_are_equal_shares() -> None:
    for case in cases():
        equal, best = (shared(case.costs, case.exchanged, is_uniform) for is_uniform in (True, False))
        assert plan_of(case, np.full((30, 2), 0.3)).band == pytest.approx(equal.band)
        found = plan_of(case, best_wishes(case))
        assert found.band == pytest.approx(best.band)
        assert found.work == pytest.approx(best.work)


def test_a_server_is_rewarded_for_what_its_own_users_save_and_wishing_for_more_costs() -> None:
    case = cases()[0]
    games = Games.of([case])
    which = torch.arange(len(games.seen))
    full = np.flatnonzero(np.bincount(case.exchanged) == games.num_users)
    users = np.stack([np.flatnonzero(case.exchanged == server) for server in full])
    wishes = best_wishes(case)[users]
    found = games.saved(which, torch.tensor(wishes, dtype=torch.float32))
    plans = [shared(case.costs, case.exchanged, is_uniform).seconds(case.costs)[users] for is_uniform in (False, True)]
    assert found.numpy() == pytest.approx(1 - plans[0].sum(axis=1) / plans[1].sum(axis=1), abs=1e-4)
    nothing, most = (games.reward(which, torch.full((len(which), games.num_users, 2), wish)) for wish in (0.0, 1.0))
    assert nothing.abs().max() < 1e-4
    assert (most + 2).abs().max() < 1e-4


def test_what_users_see_means_the_same_in_every_size() -> None:
    small, large = (seen(case.costs, case.exchanged) for case in (cases()[0], cases(180, 20)[0]))
    assert (small.shape, large.shape) == ((30, NUM_SEEN), (180, NUM_SEEN))
    for sight in (small, large):
        assert np.isfinite(sight).all()
        assert np.abs(sight[:, :2].mean(axis=0)).max() < 0.1
        assert ((sight[:, 2:5] >= 0) & (sight[:, 2:5] <= 1)).all()


def test_a_decision_ends_an_episode_with_one_reward_for_all() -> None:
    games = Games.of(cases())
    env = SharesEnv(games, num_envs=3, seed=1)
    told = env.reset()
    told["users", "action"] = torch.zeros(3, games.num_users, 2)
    after = env.step(told)["next"]
    assert isinstance(after, TensorDict)
    assert after["done"].all()
    assert after["users", "reward"].shape == (3, games.num_users, 1)
    assert after["users", "reward"].abs().max() < 1e-4


@pytest.mark.filterwarnings("ignore:SyncDataCollector has been deprecated")  # BenchMARL's
def test_an_actor_serves_any_number_of_users_and_each_by_what_it_sees_alone() -> None:
    wishes = trained(Games.of(cases()), DECISIONS_AT_ONCE, seed=0)
    sights = seen(cases(90, 4)[0].costs, cases(90, 4)[0].exchanged)
    found = wishes(sights)
    assert found.shape == (90, 2)
    assert np.abs(found).max() <= 1
    assert wishes(sights[::-1].copy())[::-1] == pytest.approx(found, abs=1e-6)


def test_the_page_tells_the_mean_of_trainings_and_their_spread() -> None:
    seconds = {"exchange": (10.0, 20.0), "exchange, best shares": (8.0, 16.0), "learned 0": (9.0, 18.0)}
    seconds |= {"learned 1": (9.5, 19.0)}
    cells = {("rows", 30, 4, name): [Outcome(s, 2 * s, 0.0, 0.0) for s in of] for name, of in seconds.items()}
    text = page(cells, (30, 4), "command", "2026-11-27")
    assert "7.5% ± 0.0% (5.0% to 10.0%) | 20.0% ± 0.0% |" in text
    assert "learned to share band and computing with 30 users on 4 servers" in text
    assert "`command`, 2026-11-27" in text
