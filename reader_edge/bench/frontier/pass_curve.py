"""Measured pass times that recorded answers are judged by: no model says these tokens, so speeds are modelled."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.errors import UserFileError
from reader_edge_runtime.measuring.cost_cache import MAX_FILE_BYTES, parse_cost
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.outside.user_input import read_bounded
from reader_edge_runtime.stats import GenerationStats


@dataclass(frozen=True, slots=True)
class PassCurve:
    """Seconds of a pass over n nodes, the pending token included, behind `past` committed tokens.

    seconds: float64 (W + 1,), by n; the first is infinite.
    """

    seconds: Float64Array
    past: int

    @classmethod
    def of_cost(cls, cost: PassCost, past: int) -> "PassCurve":
        """As plans have it: no width takes longer than a wider one."""
        return cls(cost.bounded().pass_seconds(past), past)

    @property
    def plain_s(self) -> float:
        """Seconds of a pass over the pending token alone."""
        return float(self.seconds[1])

    @property
    def max_nodes(self) -> int:
        """Drafted nodes of the widest pass that was measured."""
        return len(self.seconds) - 2

    def passes_s(self, stats: GenerationStats) -> float:
        """What all passes of these steps take."""
        return sum(count * float(self.seconds[width]) for width, count in stats.steps_by_width.items())

    def best_width(self, values: Sequence[float]) -> int:
        """Nodes, the root included, at which a tree of these values promises the most tokens a second."""
        return best_width(values, self.seconds[1:])


def best_width(values: Sequence[float], times: Float64Array) -> int:
    """Nodes of a tree that a pass pays best for: each adds its value to the tokens expected of it.

    values: of its nodes, the root's among them. times: seconds of a pass over 1, 2, ... nodes.
    """
    expected = np.cumsum(np.sort(values)[::-1])[: len(times)]
    return int(np.argmax(expected / times[: len(expected)])) + 1


def read_cost(path: Path) -> PassCost:
    """Pass times as `reader-edge bench cost --json` prints them, one sequence in a pass. Raises UserFileError."""
    try:
        fields = json.loads(read_bounded(path, MAX_FILE_BYTES))
        cost = parse_cost(fields, fields["batch_size"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise UserFileError(
            f"'{path}' holds no pass times: give what `reader-edge bench cost --json` prints."
        ) from error
    if cost.batch_size != 1 or cost.widths[0] != 1:
        raise UserFileError(f"'{path}' has no times of single sequences and nodes: measure it with --batch 1.")
    return cost
