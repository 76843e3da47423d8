"""What a learner of shares is rewarded for."""

import numpy as np
import pytest

pytest.importorskip("benchmarl", reason="the learner needs it: pip install 'reader-edge[fleet-learner]'")

import torch
from tensordict import TensorDict

from benchmarks.fleet.answers import emitted_table, read_answers
from benchmarks.fleet.comparison import planned_case
from benchmarks.fleet.costs import shared
from benchmarks.fleet.learner import Fleets, SharesEnv
from benchmarks.fleet.policies import Case
from benchmarks.fleet.scenario import Scenario
from benchmarks.fleet.ways import WAYS


def cases() -> list[Case]:
    emitted = emitted_table(read_answers())
    return [planned_case(Scenario(30, 4), WAYS["paper, rows"], emitted, seed) for seed in range(2)]


def test_equal_wishes_save_nothing_and_the_best_shares_what_they_save() -> None:
    planned = cases()
    fleets, which = Fleets.of(planned), torch.arange(2)
    assert fleets.saved(which, torch.full((2, 30, 2), 0.3)).abs().max() < 1e-5
    wishes, saved = [], []
    for case in planned:
        plan = shared(case.costs, case.exchanged, False)
        wishes.append(np.log(np.stack([plan.band, plan.work], axis=1)) / 2)
        equal_s = shared(case.costs, case.exchanged, True).seconds(case.costs).sum()
        saved.append(1 - plan.seconds(case.costs).sum() / equal_s)
    found = fleets.saved(which, torch.tensor(np.stack(wishes), dtype=torch.float32))
    assert found.numpy() == pytest.approx(saved, abs=1e-4)


def test_a_decision_ends_an_episode_with_one_reward_for_all() -> None:
    env = SharesEnv(Fleets.of(cases()), num_envs=3, seed=1)
    told = env.reset()
    told["users", "action"] = torch.zeros(3, 30, 2)
    after = env.step(told)["next"]
    assert isinstance(after, TensorDict)
    assert after["done"].all()
    assert after["users", "reward"].shape == (3, 30, 1)
    assert after["users", "reward"].abs().max() < 1e-4
