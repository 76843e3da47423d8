"""How wide the trees of a pass are: as wide as brings the most tokens a second to all who wait."""

from collections.abc import Sequence

from benchmarks.fleet.answers import Emitted
from benchmarks.fleet.pass_times import PassTimes


class TreeWidths:
    """widths: to choose from. times: of the target's passes, behind `past` tokens. beside_s: what a step takes besides
    its pass, as where a tree has to travel."""

    def __init__(
        self, widths: Sequence[int], times: PassTimes, past: float, emitted: Emitted, beside_s: float = 0.0
    ) -> None:
        self._widths, self._times, self._past, self._emitted = widths, times, past, emitted
        self._beside_s = beside_s
        self._best: dict[tuple[int, bool], int] = {}

    def best(self, num_waiting: int, is_device: bool) -> int:
        """Nodes of each of so many trees. is_device: a device drafts, else the server by what it knows."""
        key = num_waiting, is_device
        if key not in self._best:
            emitted = self._emitted[is_device]
            rates = {width: emitted[width] / self._step_s(width * num_waiting) for width in self._widths}
            self._best[key] = max(rates, key=rates.__getitem__)
        return self._best[key]

    def _step_s(self, num_nodes: int) -> float:
        return self._times.seconds(num_nodes, self._past) + self._beside_s
