"""The association of least time by a solver (HiGHS), and a bound that no association goes below.

With the best shares, a server's users together take (sum of the roots of link_s)^2 + (sum of the roots of work_s)^2,
where nothing is drafted meanwhile: squares of sums that are linear in the association. They are approached from below
by tangents, so that every program solved gives a lower bound; tangents are added where solutions lie until it is met.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, hstack, kron, vstack
from scipy.sparse import eye_array as identity

from benchmarks.fleet.costs import Costs
from reader_edge_runtime.arrays import Float64Array, Int64Array

_RELAXED_ROUNDS = 4
_EXACT_ROUNDS = 200
_TOLERANCE = 1e-6  # of the least time


@dataclass(frozen=True, slots=True)
class Solution:
    """servers: int64 (M,), each user's. seconds: what their rounds take together with the best shares, nothing drafted
    meanwhile. bound_s: what no association goes below."""

    servers: Int64Array
    seconds: float
    bound_s: float


def solved(costs: Costs) -> Solution:
    """The relaxed program's association, each user on the server that has most of it, then moved while that saves time.
    For any size."""
    program = _Program(costs)
    for _ in range(_RELAXED_ROUNDS):
        association, bound_s = program.solve(is_whole=False)
        program.add_tangents(association)
    servers = moved(costs, association.argmax(axis=1))
    return Solution(servers, total_s(costs, servers), bound_s)


def solved_exactly(costs: Costs) -> Solution:
    """The best association of whole users. For small fleets: a mixed-integer program is solved again and again."""
    scale_s = total_s(costs, costs.link_s.argmin(axis=1)) / len(costs.link_s)  # the solver's tolerances are absolute
    program = _Program(replace(costs, link_s=costs.link_s / scale_s, work_s=costs.work_s / scale_s))
    seen = set()
    for _ in range(_EXACT_ROUNDS):
        association, bound = program.solve(is_whole=True)
        servers = association.argmax(axis=1)
        if servers.tobytes() in seen:  # its squares are touched: what is left between it and the bound is rounding
            return Solution(servers, total_s(costs, servers), bound * scale_s)
        seen.add(servers.tobytes())
        program.add_tangents(np.eye(association.shape[1])[servers])
    raise RuntimeError(f"no exact association within {_EXACT_ROUNDS} programs")


def total_s(costs: Costs, servers: Int64Array) -> float:
    """Seconds of all rounds together with the best shares, nothing drafted meanwhile."""
    chosen = np.eye(costs.link_s.shape[1])[servers]
    return float(sum(((np.sqrt(seconds) * chosen).sum(axis=0) ** 2).sum() for seconds in (costs.link_s, costs.work_s)))


def moved(costs: Costs, servers: Int64Array) -> Int64Array:
    """An association after moves of single users, the one that saves most first, while any saves time."""
    servers, users = servers.copy(), np.arange(len(servers))
    roots = np.sqrt(np.stack([costs.link_s, costs.work_s]))  # (2, M, E)
    while True:
        sums = (roots * np.eye(roots.shape[2])[servers]).sum(axis=1)  # (2, E)
        mine = roots[:, users, servers]
        left = (mine * (2 * sums[:, servers] - mine)).sum(axis=0)
        joined = (roots * (2 * sums[:, None, :] + roots)).sum(axis=0)
        joined[users, servers] = left
        saved = left[:, None] - joined
        user, server = np.unravel_index(saved.argmax(), saved.shape)
        if saved[user, server] <= 1e-12:
            return servers
        servers[user] = server


@dataclass
class _Program:
    """Variables: the association, user by user; of link and work and each server the sum of roots; their squares."""

    costs: Costs
    _tangents: list[Float64Array] = field(default_factory=list)  # each (2E,): sums at which the squares are touched

    def __post_init__(self) -> None:
        num_users, num_servers = self.costs.link_s.shape
        roots = np.sqrt(np.stack([self.costs.link_s, self.costs.work_s]))
        self._roots = np.concatenate([csr_array(_by_server(each)).toarray() for each in roots])  # (2E, M * E)
        num_sums, num_pairs = 2 * num_servers, num_users * num_servers
        self._num_pairs, self._num_sums = num_pairs, num_sums
        one_server = hstack(
            [kron(identity(num_users), np.ones((1, num_servers))), csr_array((num_users, 2 * num_sums))]
        )
        sums = hstack([csr_array(self._roots), -identity(num_sums), csr_array((num_sums, num_sums))])
        self._fixed = vstack([one_server, sums])
        self._right = np.concatenate([np.ones(num_users), np.zeros(num_sums)])
        for share in np.geomspace(0.25, 4.0, 9):
            self._tangents.append(share * roots.sum(axis=1).ravel() / num_servers)

    def add_tangents(self, association: Float64Array) -> None:
        """Where the sums of an association are."""
        self._tangents.append(self._roots @ association.ravel())

    def solve(self, is_whole: bool) -> tuple[Float64Array, float]:
        """An association, float64 (M, E), and a lower bound of its seconds. is_whole: no user is cut in parts."""
        points = np.stack(self._tangents)  # square >= 2 * point * sum - point^2
        blocks = [
            hstack(
                [csr_array((self._num_sums, self._num_pairs)), csr_array(np.diag(-2 * point)), identity(self._num_sums)]
            )
            for point in points
        ]
        weights = np.concatenate([np.zeros(self._num_pairs + self._num_sums), np.ones(self._num_sums)])
        result = milp(
            weights,
            integrality=np.concatenate([np.full(self._num_pairs, int(is_whole)), np.zeros(2 * self._num_sums)]),
            bounds=Bounds(0, np.concatenate([np.ones(self._num_pairs), np.full(2 * self._num_sums, np.inf)])),
            constraints=[
                LinearConstraint(self._fixed, self._right, self._right),
                LinearConstraint(vstack(blocks), -np.square(points).ravel(), np.inf),
            ],
            options={"mip_rel_gap": _TOLERANCE},
        )
        if result.x is None:
            raise RuntimeError(f"the solver gave up: {result.message}")
        bound_s = result.mip_dual_bound if is_whole else result.fun
        return result.x[: self._num_pairs].reshape(self.costs.link_s.shape), float(bound_s)


def _by_server(roots: Float64Array) -> Float64Array:
    """A row a server that sums the roots of its users. roots: (M, E); result: (E, M * E)."""
    num_users, num_servers = roots.shape
    rows = np.zeros((num_servers, num_users, num_servers))
    for server in range(num_servers):
        rows[server, :, server] = roots[:, server]
    return rows.reshape(num_servers, -1)
