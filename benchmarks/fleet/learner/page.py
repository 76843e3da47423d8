"""The learner's part of the fleet's page."""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.fleet.comparison import Cell, Outcome
from benchmarks.fleet.report import interval
from benchmarks.peers.tables import table
from reader_edge_runtime.arrays import Float64Array

Outcomes = Mapping[Cell, Sequence[Outcome]]
EQUAL, BEST, LEARNED = "exchange", "exchange, best shares", "learned "


def page(outcomes: Outcomes, size: tuple[int, ...], command: str, when: str) -> str:
    """outcomes: with equal and best shares, and of each training. size: users and servers that it was trained on."""
    ways = dict.fromkeys(way for way, *_ in outcomes)
    lines = [
        f"BenchMARL's MASAC learned to share band and computing with {size[0]} users on {size[1]} servers; the same "
        "actor then shares in every size. Association is the exchange's in all columns. *Below*: by how much the mean "
        "latency is below equal shares; in brackets the least and the most of the trainings.",
        "",
        *table(
            ["mean; p95, s", "equal shares", "learned", "best shares", "learned, below", "best, below"],
            [row for way in ways for row in _rows(outcomes, way)],
        ),
        "",
        f"Counts: simulated. `{command}`, {when}.",
        "",
    ]
    return "\n".join(lines)


def _rows(outcomes: Outcomes, way: str) -> list[list[str]]:
    rows = []
    for users, servers in dict.fromkeys(cell[1:3] for cell in outcomes if cell[0] == way):
        of_size = {cell[3]: of for cell, of in outcomes.items() if cell[:3] == (way, users, servers)}
        learned = [_seconds(of) for name, of in of_size.items() if name.startswith(LEARNED)]
        equal, best = _seconds(of_size[EQUAL]), _seconds(of_size[BEST])
        mean_of_trainings = np.mean(learned, axis=0)
        each = [float(np.mean(1 - one[0] / equal[0])) for one in learned]
        below = "{:.1%} ± {:.1%}".format(*interval(1 - mean_of_trainings[0] / equal[0]))
        rows.append(
            [
                f"{way}: {users} on {servers}",
                *(_cell(seconds) for seconds in (equal, mean_of_trainings, best)),
                f"{below} ({min(each):.1%} to {max(each):.1%})",
                "{:.1%} ± {:.1%}".format(*interval(1 - best[0] / equal[0])),
            ]
        )
    return rows


def _seconds(outcomes: Sequence[Outcome]) -> Float64Array:
    """(2, F): means and p95 of F fleets."""
    return np.array([[each.mean_s for each in outcomes], [each.p95_s for each in outcomes]])


def _cell(seconds: Float64Array) -> str:
    return "; ".join("{:.3g} ± {:.2g}".format(*interval(values)) for values in seconds)
