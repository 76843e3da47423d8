"""A multi-agent soft actor-critic (BenchMARL's MASAC) that learns to share."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from benchmarl.algorithms import MasacConfig
from benchmarl.environments.common import TaskClass
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models import DeepsetsConfig, MlpConfig
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from benchmarks.fleet.learner.games import NUM_SEEN, Games
from reader_edge_runtime.arrays import Float64Array

_NUM_ENVS = 64
DECISIONS_AT_ONCE = 16 * _NUM_ENVS  # between which it learns
_LEAST_STD = 0.05  # what hardly differs where it is trained may differ elsewhere


class SharesEnv(EnvBase):
    """One decision, and its reward. Every reset draws another batch of servers."""

    def __init__(self, games: Games, num_envs: int, seed: int) -> None:
        super().__init__(batch_size=torch.Size([num_envs]))
        self._games, self._generator = games, torch.Generator().manual_seed(seed)
        self._which = torch.zeros(num_envs, dtype=torch.int64)
        agents = (num_envs, games.num_users)

        def of_agents(name: str, spec: Any) -> Composite:
            return Composite(users=Composite({name: spec}, shape=agents), shape=(num_envs,))

        self.observation_spec = of_agents("observation", Unbounded(shape=(*agents, NUM_SEEN)))
        self.action_spec = of_agents("action", Bounded(low=-1.0, high=1.0, shape=(*agents, 2)))
        self.reward_spec = of_agents("reward", Unbounded(shape=(*agents, 1)))

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDict:
        self._which = torch.randint(len(self._games.seen), self._which.shape, generator=self._generator)
        return self._told()

    def _step(self, tensordict: TensorDict) -> TensorDict:
        reward = self._games.reward(self._which, tensordict["users", "action"])
        told = self._told()
        told["users", "reward"] = reward[:, None, None].expand(-1, self._games.num_users, 1).clone()
        told["done"] = told["terminated"] = torch.ones((*self.batch_size, 1), dtype=torch.bool)
        return told

    def _told(self) -> TensorDict:
        agents = (*self.batch_size, self._games.num_users)
        users = TensorDict({"observation": self._games.seen[self._which]}, batch_size=agents)
        return TensorDict({"users": users}, batch_size=self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        self._generator.manual_seed(seed or 0)


class SharesTask(TaskClass):
    """What BenchMARL asks of a task."""

    def __init__(self, games: Games) -> None:
        super().__init__("SHARES", {})
        self._games = games

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        return lambda: SharesEnv(self._games, num_envs, seed or 0)

    def supports_continuous_actions(self) -> bool:
        return True

    def supports_discrete_actions(self) -> bool:
        return False

    def max_steps(self, env: EnvBase) -> int:
        return 1

    def has_render(self, env: EnvBase) -> bool:
        return False

    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        return {"users": [f"user_{number}" for number in range(self._games.num_users)]}

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


def trained(games: Games, num_decisions: int, seed: int) -> Callable[[Float64Array], Float64Array]:
    """What users wish after so many decisions of servers: (M, 6) that they see -> (M, 2), for any number of users."""
    mean, std = games.seen.mean(dim=(0, 1)), games.seen.std(dim=(0, 1)).clamp(min=_LEAST_STD)
    with tempfile.TemporaryDirectory() as folder:
        experiment = _experiment(replace(games, seen=(games.seen - mean) / std), num_decisions, seed, folder)
        experiment.run()

    def wishes(seen: Float64Array) -> Float64Array:
        # The actor is one for all, but takes as many users as it was trained with: each is asked as all of them.
        each = (torch.tensor(seen, dtype=torch.float32) - mean) / std
        repeated = each[:, None].expand(-1, games.num_users, -1)
        users = TensorDict({"observation": repeated}, batch_size=repeated.shape[:2])
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            told = experiment.policy(TensorDict({"users": users}, batch_size=repeated.shape[:1]))
        wished: Float64Array = told["users", "action"][:, 0].double().numpy()
        return wished

    return wishes


def _experiment(games: Games, num_decisions: int, seed: int, folder: str) -> Experiment:
    config = ExperimentConfig.get_from_yaml()
    config.max_n_frames, config.gamma, config.lr = num_decisions, 0.0, 1e-3
    config.off_policy_n_envs_per_worker = _NUM_ENVS
    config.off_policy_collected_frames_per_batch = DECISIONS_AT_ONCE
    config.off_policy_n_optimizer_steps, config.off_policy_memory_size = 128, 50_000
    config.evaluation, config.render, config.loggers, config.create_json = False, False, [], False
    config.save_folder = folder
    masac = MasacConfig.get_from_yaml()
    masac.alpha_init, masac.fixed_alpha = 0.01, True  # entropy is worth little: what is gained is little
    masac.scale_mapping = "biased_softplus_0.3"  # noise of the first wishes
    tanh = torch.nn.Tanh
    actor = MlpConfig(num_cells=[64, 64], layer_class=torch.nn.Linear, activation_class=tanh)
    critic = DeepsetsConfig(  # of a set of users, whose order says nothing
        aggr="mean",
        local_nn_num_cells=[64],
        local_nn_activation_class=tanh,
        out_features_local_nn=64,
        global_nn_num_cells=[64],
        global_nn_activation_class=tanh,
    )
    return Experiment(SharesTask(games), masac, actor, seed, config, critic_model_config=critic)
