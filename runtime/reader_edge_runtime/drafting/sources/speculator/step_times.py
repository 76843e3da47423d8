"""What passes of a speculator take on this machine, by how many nodes they have: measured once, then followed."""

import time
from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.cost_model import moved
from reader_edge_runtime.drafting.sources.speculator.speculator import Speculator, TreeStep

WIDTHS = (1, 2, 4, 8, 16, 64)  # nodes of the passes that are measured
_ROUNDS = 2
_OTHER_BYTES = 64 << 20  # read before each pass, as the target's weights are: its own leave the processor's caches


class StepTimes:
    """Seconds of passes of a speculator, T_s(n). seconds: of each of WIDTHS."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = list(seconds)

    @classmethod
    def measure(cls, speculator: Speculator) -> "StepTimes":
        """Of one text. Raises ProviderError for a speculator that does not run."""
        widths = [min(width, speculator.max_context - 1) for width in WIDTHS]
        cache = speculator.new_cache(1, min(2 * max(widths), speculator.max_context))
        cache.fill(0, 1)
        others = np.ones(_OTHER_BYTES // 8)
        found: list[list[float]] = [[] for _ in widths]
        for _ in range(1 + _ROUNDS):  # the first time, memory is laid out
            for times, width in zip(found, widths, strict=True):
                states = np.zeros((width, speculator.part.hidden_size), np.float32)
                step = TreeStep(DraftTree.chain([0] * (1 + width)), 1, states)
                others.sum()
                began = time.perf_counter()
                speculator.step(cache, 0, [step])
                times.append(time.perf_counter() - began)
        return cls([min(times[1:]) for times in found])

    def seconds(self, num_nodes: int) -> float:
        """Of a pass of so many nodes: between those measured on a line, beyond them in proportion."""
        if num_nodes > WIDTHS[-1]:
            return self._seconds[-1] * num_nodes / WIDTHS[-1]
        return float(np.interp(num_nodes, WIDTHS, self._seconds))

    def learn(self, num_nodes: int, seconds: float) -> None:
        """A pass of so many nodes took so long."""
        if num_nodes <= WIDTHS[-1]:
            nearest = min(range(len(WIDTHS)), key=lambda i: abs(WIDTHS[i] - num_nodes))
            expected = self.seconds(num_nodes)
            if expected > 0:
                self._seconds[nearest] = moved(self._seconds[nearest], self._seconds[nearest] * seconds / expected)
