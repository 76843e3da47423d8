"""Which server each user talks to, by rules that need no solver. Results are int64 (M,), a server for each user."""

import numpy as np

from benchmarks.fleet.costs import Costs
from benchmarks.fleet.scenario import Fleet
from reader_edge_runtime.arrays import Int64Array


def random_servers(fleet: Fleet, rng: np.random.Generator) -> Int64Array:
    """Any."""
    num_users, num_servers = fleet.gains_db.shape
    return rng.integers(num_servers, size=(num_users,))


def strongest_servers(fleet: Fleet) -> Int64Array:
    """Those that are received best, however many others are there."""
    servers: Int64Array = fleet.gains_db.argmax(axis=1)
    return servers


def computing_servers(fleet: Fleet) -> Int64Array:
    """Those with the most computing a user, one user after the other: alone, all would take the same."""
    counts = np.zeros(len(fleet.server_speeds))
    servers = np.empty(len(fleet.gains_db), dtype=np.int64)
    for user in range(len(servers)):
        servers[user] = np.argmax(fleet.server_speeds / (counts + 1))
        counts[servers[user]] += 1
    return servers


def exchanged_servers(fleet: Fleet, costs: Costs) -> Int64Array:
    """The paper's TMA: the best gains first, equally many users a server; then pairs change places while that saves
    time with equal shares, the pair that saves most first."""
    servers = _dealt(fleet)
    users = np.arange(len(servers))
    counts = np.bincount(servers, minlength=fleet.gains_db.shape[1])
    prices = np.maximum(costs.draft_s[:, None], costs.link_s * counts) + costs.work_s * counts
    while True:
        mine = prices[users, servers]
        theirs = prices[:, servers]  # (M, M): a user's price in the place of another
        saved = mine[:, None] + mine[None, :] - theirs - theirs.T
        one, other = np.unravel_index(saved.argmax(), saved.shape)
        if saved[one, other] <= 1e-12:
            return servers
        servers[[one, other]] = servers[[other, one]]


def _dealt(fleet: Fleet) -> Int64Array:
    """The best gains first, while a server has room."""
    num_users, num_servers = fleet.gains_db.shape
    room = np.full(num_servers, -(-num_users // num_servers))
    servers = np.full(num_users, -1)
    for place in np.argsort(-fleet.gains_db, axis=None, kind="stable"):
        user, server = divmod(int(place), num_servers)
        if servers[user] < 0 and room[server] > 0:
            servers[user] = server
            room[server] -= 1
    return servers
