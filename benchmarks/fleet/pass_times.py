"""How long the target's passes take: as measured, and beyond the widest that were measured along the last slope."""

from pathlib import Path

import numpy as np

from reader_edge.bench.frontier.pass_curve import read_cost
from reader_edge_runtime.measuring.pass_cost import PassCost

FILE = Path(__file__).with_name("cost.json")  # what `reader-edge bench cost PACKAGE --json` prints, and where and when
_STEP = 16  # tokens of a text between rows of the table


class PassTimes:
    """Seconds of passes on the machine on which they were measured."""

    def __init__(self, cost: PassCost, scale: float = 1.0) -> None:
        """scale: how many measured passes a pass takes, as of a larger model."""
        cost = cost.bounded()
        pasts = range(0, cost.pasts[-1] + _STEP, _STEP)
        nodes = np.arange(cost.widths[-1] + 1)
        at_past = np.stack([np.interp(pasts, cost.pasts, column) for column in cost.seconds.T])
        self._rows: list[list[float]] = [(scale * np.interp(nodes, cost.widths, row)).tolist() for row in at_past.T]
        widest, before = cost.widths[-1], cost.widths[-2]
        self._slopes_s = [(row[widest] - row[before]) / (widest - before) for row in self._rows]

    @classmethod
    def read(cls, scale: float = 1.0, path: Path = FILE) -> "PassTimes":
        """Those that were committed, or another output of `bench cost`. Raises ConfigError."""
        return cls(read_cost(path), scale)

    def seconds(self, nodes: int, past: float) -> float:
        """Of one pass over so many nodes, of one text or several, behind `past` tokens each, or behind the most that
        were measured."""
        place = min(round(past / _STEP), len(self._rows) - 1)
        row = self._rows[place]
        if nodes < len(row):
            return row[nodes]
        return row[-1] + self._slopes_s[place] * (nodes - len(row) + 1)
