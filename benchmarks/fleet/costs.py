"""What rounds cost before anything is shared, and what an association of users with servers comes to."""

from dataclasses import dataclass

import numpy as np

from benchmarks.fleet.scenario import Fleet
from benchmarks.fleet.shares import band_shares, uniform_shares, work_shares
from reader_edge_runtime.arrays import Float64Array, Int64Array


@dataclass(frozen=True, slots=True)
class Round:
    """What a round asks for: bits each way, seconds of drafting and, float64 (M,), of each user's pass, both on the
    machine on which passes were measured."""

    up_bits: float
    down_bits: float
    pass_s: Float64Array
    draft_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of rounds of M users on E servers, each with a whole server: link_s and work_s, float64 (M, E). draft_s:
    float64 (M,)."""

    link_s: Float64Array
    work_s: Float64Array
    draft_s: Float64Array

    @classmethod
    def of(cls, fleet: Fleet, each: Round) -> "Costs":
        work_s = each.pass_s[:, None] / fleet.server_speeds
        link_s = each.up_bits / fleet.up_bit_s + each.down_bits / fleet.down_bit_s
        return cls(link_s, work_s, each.draft_s / fleet.device_speeds)


@dataclass(frozen=True, slots=True)
class Plan:
    """servers: int64 (M,), each user's. band, work: float64 (M,), its shares of that server."""

    servers: Int64Array
    band: Float64Array
    work: Float64Array

    def seconds(self, costs: Costs) -> Float64Array:
        """Of each user's round, float64 (M,)."""
        users = np.arange(len(self.servers))
        sending = np.maximum(costs.draft_s, costs.link_s[users, self.servers] / self.band)
        return sending + costs.work_s[users, self.servers] / self.work


def shared(costs: Costs, servers: Int64Array, is_uniform: bool) -> Plan:
    """The plan of an association, with equal shares or with the best."""
    band, work = np.empty(len(servers)), np.empty(len(servers))
    for server in np.unique(servers):
        users = np.flatnonzero(servers == server)
        if is_uniform:
            band[users] = work[users] = uniform_shares(len(users))
        else:
            band[users] = band_shares(costs.link_s[users, server], costs.draft_s[users])
            work[users] = work_shares(costs.work_s[users, server])
    return Plan(servers, band, work)
