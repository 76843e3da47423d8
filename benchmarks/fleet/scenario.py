"""A fleet: users, edge servers and the radio between them, drawn by a seed."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.fleet.channel import gains_db
from reader_edge_runtime.arrays import Float64Array

_NOISE_DBM_HZ = -174.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a fleet is drawn from. The first block is the paper's (arXiv 2511.01695); it does not publish the others.

    band_hz: of all servers together, in equal parts. side_m: of the square in which all stand. server_speeds,
    device_speeds: from, to, times the machine on which passes were measured. pasts: tokens before an answer, from, to.
    delay_s: of a message each way, besides its bits. pass_scale: how many measured passes the target's pass takes; the
    paper's target has 11 times the parameters of its draft model.
    """

    num_users: int
    num_servers: int
    band_hz: float = 10e6
    user_dbm: tuple[float, float] = (16.0, 24.0)

    server_dbm: float = 30.0
    carrier_ghz: float = 3.5
    side_m: float = 400.0
    server_speeds: tuple[float, float] = (4.0, 16.0)
    device_speeds: tuple[float, float] = (0.25, 1.0)
    pasts: tuple[float, float] = (64.0, 2048.0)
    delay_s: float = 0.005
    pass_scale: float = 11.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """M users and E servers. gains_db, up_bit_s, down_bit_s: float64 (M, E), rates with all of a server's band.
    user_dbm, device_speeds, pasts: float64 (M,). server_speeds: float64 (E,)."""

    scenario: Scenario
    gains_db: Float64Array
    up_bit_s: Float64Array
    down_bit_s: Float64Array
    user_dbm: Float64Array
    device_speeds: Float64Array
    pasts: Float64Array
    server_speeds: Float64Array


@cache
def draw_fleet(scenario: Scenario, seed: int) -> Fleet:
    """The same fleet for the same scenario and seed."""
    rng = np.random.default_rng([seed, scenario.num_users, scenario.num_servers])
    gains = _gains_db(scenario, rng)
    user_dbm = rng.uniform(*scenario.user_dbm, scenario.num_users)
    return Fleet(
        scenario,
        gains,
        rates_bit_s(gains + user_dbm[:, None], scenario),
        rates_bit_s(gains + scenario.server_dbm, scenario),
        user_dbm,
        rng.uniform(*scenario.device_speeds, scenario.num_users),
        rng.uniform(*scenario.pasts, scenario.num_users),
        rng.uniform(*scenario.server_speeds, scenario.num_servers),
    )


def _gains_db(scenario: Scenario, rng: np.random.Generator) -> Float64Array:
    """float64 (M, E)."""
    users = rng.uniform(0, scenario.side_m, (scenario.num_users, 1, 2))
    servers = rng.uniform(0, scenario.side_m, (1, scenario.num_servers, 2))
    distances_m = np.maximum(10.0, np.linalg.norm(users - servers, axis=2))  # what the formulas hold for
    return gains_db(distances_m, scenario.carrier_ghz, rng)


def rates_bit_s(received_dbm: Float64Array, scenario: Scenario) -> Float64Array:
    """Shannon's rates over all of a server's band. A part of the band has that part of the rate, as in the paper: noise
    is counted over the whole band."""
    band_hz = scenario.band_hz / scenario.num_servers
    noise_dbm = _NOISE_DBM_HZ + 10 * np.log10(band_hz)
    rates: Float64Array = band_hz * np.log2(1 + 10 ** ((received_dbm - noise_dbm) / 10))
    return rates
