"""The paper's learner beside the closed form: shares of band and computing by a multi-agent soft actor-critic (MASAC).

    python -m benchmarks.fleet.learner [--way "paper, rows"] [--frames 200000]

Needs the extra `fleet-learner`: MASAC is BenchMARL's. Every user is an agent. It sees its own round and what its server
has, and says how much of band and computing it wants; a server's users get shares by the exponentials of that.
Association is the exchange's, the reward by how much rounds are shorter than with equal shares. Trained on fleets that
are not those of the tables, 30 users on 4 servers; told is what it saves on those that are.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarl.algorithms import MasacConfig
from benchmarl.environments.common import TaskClass
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from benchmarks.fleet.answers import emitted_table, read_answers
from benchmarks.fleet.comparison import planned_case
from benchmarks.fleet.costs import shared
from benchmarks.fleet.policies import Case
from benchmarks.fleet.report import interval
from benchmarks.fleet.scenario import Scenario
from benchmarks.fleet.ways import WAYS

_SIZE = 30, 4
_NUM_FLEETS, _FIRST_SEED = 256, 1000  # to learn from
_NUM_ENVS = 64
_SEEN = 6  # numbers that an agent sees
_REACH = 2.0  # of a wish: the largest share is exp(4) times the least


@dataclass(frozen=True)
class Fleets:
    """Tensors of F fleets with M users on E servers.

    seen: (F, M, 6). link_s, work_s, draft_s: (F, M), of each user with its server. servers: (F, M, E), ones at each
    user's server. equal_s: (F,), of all rounds with equal shares.
    """

    seen: torch.Tensor
    link_s: torch.Tensor
    work_s: torch.Tensor
    draft_s: torch.Tensor
    servers: torch.Tensor
    equal_s: torch.Tensor

    @classmethod
    def of(cls, cases: list[Case]) -> "Fleets":
        users = np.arange(_SIZE[0])
        link_s = np.stack([case.costs.link_s[users, case.exchanged] for case in cases])
        work_s = np.stack([case.costs.work_s[users, case.exchanged] for case in cases])
        draft_s = np.stack([case.costs.draft_s for case in cases])
        servers = np.stack([np.eye(_SIZE[1])[case.exchanged] for case in cases])
        own = [link_s, work_s, draft_s + 1e-6]
        of_server = [np.einsum("fm,fme->fe", np.sqrt(each), servers) for each in (link_s, work_s)]
        of_server.append(servers.sum(axis=1))
        seen = np.log(np.stack([*own, *(np.einsum("fe,fme->fm", each, servers) for each in of_server)], axis=2))
        seen = (seen - seen.mean(axis=(0, 1))) / (seen.std(axis=(0, 1)) + 1e-6)
        equal_s = np.array([shared(case.costs, case.exchanged, True).seconds(case.costs).sum() for case in cases])
        return cls(
            *(torch.tensor(each, dtype=torch.float32) for each in (seen, link_s, work_s, draft_s, servers, equal_s))
        )

    def saved(self, which: torch.Tensor, wishes: torch.Tensor) -> torch.Tensor:
        """By which share rounds are shorter than with equal shares, (N,). which: (N,) fleets. wishes: (N, M, 2)."""
        servers = self.servers[which]
        weights = torch.exp(_REACH * wishes)
        sums = torch.einsum("nmk,nme->nek", weights, servers)
        band, work = (weights / torch.einsum("nek,nme->nmk", sums, servers)).unbind(dim=2)
        sending_s = torch.maximum(self.draft_s[which], self.link_s[which] / band)
        return 1 - (sending_s + self.work_s[which] / work).sum(dim=1) / self.equal_s[which]


class SharesEnv(EnvBase):
    """One decision, and its reward. Every reset draws another batch of fleets."""

    def __init__(self, fleets: Fleets, num_envs: int, seed: int) -> None:
        super().__init__(batch_size=torch.Size([num_envs]))
        self._fleets, self._generator = fleets, torch.Generator().manual_seed(seed)
        self._which = torch.zeros(num_envs, dtype=torch.int64)
        agents = (num_envs, _SIZE[0])

        def of_agents(name: str, spec: Any) -> Composite:
            return Composite(users=Composite({name: spec}, shape=agents), shape=(num_envs,))

        self.observation_spec = of_agents("observation", Unbounded(shape=(*agents, _SEEN)))
        self.action_spec = of_agents("action", Bounded(low=-1.0, high=1.0, shape=(*agents, 2)))
        self.reward_spec = of_agents("reward", Unbounded(shape=(*agents, 1)))

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDict:
        self._which = torch.randint(len(self._fleets.seen), self._which.shape, generator=self._generator)
        return self._told()

    def _step(self, tensordict: TensorDict) -> TensorDict:
        reward = 10 * self._fleets.saved(self._which, tensordict["users", "action"])
        told = self._told()
        told["users", "reward"] = reward[:, None, None].expand(-1, _SIZE[0], 1).clone()
        told["done"] = told["terminated"] = torch.ones((*self.batch_size, 1), dtype=torch.bool)
        return told

    def _told(self) -> TensorDict:
        users = TensorDict({"observation": self._fleets.seen[self._which]}, batch_size=(*self.batch_size, _SIZE[0]))
        return TensorDict({"users": users}, batch_size=self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        self._generator.manual_seed(seed or 0)


class SharesTask(TaskClass):
    """What BenchMARL asks of a task."""

    def __init__(self, fleets: Fleets) -> None:
        super().__init__("SHARES", {})
        self._fleets = fleets

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        return lambda: SharesEnv(self._fleets, num_envs, seed or 0)

    def supports_continuous_actions(self) -> bool:
        return True

    def supports_discrete_actions(self) -> bool:
        return False

    def max_steps(self, env: EnvBase) -> int:
        return 1

    def has_render(self, env: EnvBase) -> bool:
        return False

    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        return {"users": [f"user_{number}" for number in range(_SIZE[0])]}

    def observation_spec(self, env: EnvBase) -> Composite:
        return env.observation_spec_unbatched

    def action_spec(self, env: EnvBase) -> Composite:
        return env.full_action_spec_unbatched

    def info_spec(self, env: EnvBase) -> None:
        return None

    def state_spec(self, env: EnvBase) -> None:
        return None

    def action_mask_spec(self, env: EnvBase) -> None:
        return None

    @staticmethod
    def env_name() -> str:
        return "fleet"


def trained(fleets: Fleets, num_frames: int, folder: Path) -> Callable[[TensorDict], TensorDict]:
    """MASAC's policy after so many decisions."""
    config = ExperimentConfig.get_from_yaml()
    config.max_n_frames, config.gamma, config.lr = num_frames, 0.0, 3e-4
    config.off_policy_n_envs_per_worker = _NUM_ENVS
    config.off_policy_collected_frames_per_batch = 16 * _NUM_ENVS
    config.off_policy_n_optimizer_steps, config.off_policy_memory_size = 32, 50_000
    config.evaluation, config.render, config.loggers, config.create_json = False, False, [], False
    config.save_folder = str(folder)
    models = [MlpConfig(num_cells=[64, 64], layer_class=torch.nn.Linear, activation_class=torch.nn.Tanh) for _ in "ac"]
    algorithm = MasacConfig.get_from_yaml()
    experiment = Experiment(SharesTask(fleets), algorithm, models[0], 0, config, critic_model_config=models[1])
    experiment.run()
    policy: Callable[[TensorDict], TensorDict] = experiment.policy
    return policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", default="paper, rows", choices=list(WAYS))
    parser.add_argument("--frames", type=int, default=200_000, help="decisions to learn from")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    emitted = emitted_table(read_answers())
    seeds = [*range(options.seeds), *range(_FIRST_SEED, _FIRST_SEED + _NUM_FLEETS)]
    cases = [planned_case(Scenario(*_SIZE), WAYS[options.way], emitted, seed) for seed in seeds]
    fleets = Fleets.of(cases)
    told, learned_from = (Fleets(*(each[part] for each in vars(fleets).values())) for part in _parts(options.seeds))
    with tempfile.TemporaryDirectory() as folder:
        policy = trained(learned_from, options.frames, Path(folder))
    users = TensorDict({"observation": told.seen}, batch_size=(options.seeds, _SIZE[0]))
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        wishes = policy(TensorDict({"users": users}, batch_size=(options.seeds,)))["users", "action"]
    learned = told.saved(torch.arange(options.seeds), wishes).tolist()
    best = [
        1 - shared(case.costs, case.exchanged, False).seconds(case.costs).sum() / float(equal_s)
        for case, equal_s in zip(cases, told.equal_s, strict=False)
    ]
    for name, saved in (("learned shares", learned), ("best shares", best)):
        mean, half = interval(saved)
        print(f"{name}: {mean:.2%} ± {half:.2%} below equal shares")


def _parts(count: int) -> tuple[slice, slice]:
    return slice(count), slice(count, None)


if __name__ == "__main__":
    main()
