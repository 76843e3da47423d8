"""What is learned: how one server's users share its band and computing. Servers share nothing with each other, so each
is a game of its own, with a reward of its own."""

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.fleet.costs import Costs, Plan, shared
from benchmarks.fleet.policies import Case
from reader_edge_runtime.arrays import Float64Array, Int64Array

NUM_SEEN = 6  # numbers that a user sees
_REACH = 1.0  # of a wish: the largest share is exp(2) times the least
_REWARD = 10.0  # for rounds that take no time


def seen(costs: Costs, servers: Int64Array) -> Float64Array:
    """(M, 6): what each user sees of its own round and of its server. Ratios, so they mean the same in every size."""
    users = np.arange(len(servers))
    link_s, work_s = costs.link_s[users, servers], costs.work_s[users, servers]
    counts = np.bincount(servers)

    def mean(values: Float64Array) -> Float64Array:
        """Over a user's server."""
        means: Float64Array = (np.bincount(servers, values) / np.maximum(counts, 1))[servers]
        return means

    link, work = (np.log(np.sqrt(each) / mean(np.sqrt(each))) for each in (link_s, work_s))
    needs = np.divide(link_s, costs.draft_s, out=np.ones_like(link_s), where=costs.draft_s > 0)
    return np.stack(
        [
            link,  # sending, beside the server's users
            work,  # computing, beside them
            costs.draft_s / (costs.draft_s + link_s * counts[servers]),  # drafting, beside sending with an equal share
            work_s / (work_s + link_s),  # computing, beside sending
            mean(np.minimum(needs, 1.0)),  # part of the band that a user of the server can use while it drafts
            np.sqrt(mean(link**2)),  # how unlike the server's users are
        ],
        axis=1,
    )


def plan_of(case: Case, wishes: Float64Array) -> Plan:
    """Of the exchange's association, with the shares that users get for what they wish, (M, 2): band and computing."""
    weights = np.exp(_REACH * wishes)
    of_server = np.stack([np.bincount(case.exchanged, each)[case.exchanged] for each in weights.T], axis=1)
    band, work = (weights / of_server).T
    return Plan(case.exchanged, band, work)


@dataclass(frozen=True)
class Games:
    """Tensors of S servers with K users each. seen: (S, K, 6). link_s, work_s, draft_s: (S, K). equal_s: (S,), of all
    rounds with equal shares."""

    seen: torch.Tensor
    link_s: torch.Tensor
    work_s: torch.Tensor
    draft_s: torch.Tensor
    equal_s: torch.Tensor

    @classmethod
    def of(cls, cases: list[Case]) -> "Games":
        """Of the servers of these fleets that have the most users."""
        most = max(np.bincount(case.exchanged).max() for case in cases)
        games: list[list[Float64Array]] = []
        for case in cases:
            sights = seen(case.costs, case.exchanged)
            seconds = shared(case.costs, case.exchanged, True).seconds(case.costs)
            for server in np.flatnonzero(np.bincount(case.exchanged) == most):
                users = np.flatnonzero(case.exchanged == server)
                sides = case.costs.link_s[users, server], case.costs.work_s[users, server], case.costs.draft_s[users]
                games.append([sights[users], *sides, seconds[users].sum()])
        return cls(*(torch.tensor(np.stack(each), dtype=torch.float32) for each in zip(*games, strict=True)))

    @property
    def num_users(self) -> int:
        """K."""
        return self.seen.shape[1]

    def saved(self, which: torch.Tensor, wishes: torch.Tensor) -> torch.Tensor:
        """By which share rounds are shorter than with equal shares, (N,). which: (N,) servers. wishes: (N, K, 2)."""
        band, work = torch.softmax(_REACH * wishes, dim=1).unbind(dim=2)
        sending_s = torch.maximum(self.draft_s[which], self.link_s[which] / band)
        return 1 - (sending_s + self.work_s[which] / work).sum(dim=1) / self.equal_s[which]

    def reward(self, which: torch.Tensor, wishes: torch.Tensor) -> torch.Tensor:
        """(N,), the same for all users of a server. Shares go by how wishes differ, so their mean is free, and costs.

        Were it not to cost, all would wish the most: there the actor's squashing leaves exploration no noise, and what
        it costs is more than what there is to gain.
        """
        return _REWARD * self.saved(which, wishes) - (wishes.mean(dim=1) ** 2).sum(dim=1)
