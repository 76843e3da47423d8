"""How many nodes a pass gets: as many as pay on this machine, and none where drafting has not paid."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.execution.verify_cost import VerifyCost

Float64Array = npt.NDArray[np.float64]

# Without a measurement: half a pass more at 16 nodes, as int8 packages of 0.1 to 0.5 B parameters were seen to cost.
_UNMEASURED_GROWTH = 0.033

# Drafting, checking and cutting cost with the nodes drafted: twice of what the last pass took leaves room to grow.
_FIRST_DRAFT = 16
_LEAST_DRAFT = 6

_WINDOW = 24  # drafted steps that one verdict of the guard looks back on
_FIRST_REST = 16  # plain steps of a first rest; each further one without success doubles it
_LONGEST_REST = 1024
_MEMORY = 0.05  # share of the newest step in running means


class NodeBudget:
    """Chooses the width of each pass: argmax of expected tokens over seconds, per batch.

    Measured times come through `add`; the nearest batch size is scaled for others, and without any a fixed growth is
    assumed. What steps really take corrects the times, width by width. The guard compares drafted steps, drafting
    included, with what the same tokens would have cost plainly: over a window that lost, drafting rests, then is tried
    again.
    """

    def __init__(self, max_width: int) -> None:
        self._costs: dict[int, VerifyCost] = {}
        self._max_width = max_width
        self._corrections: dict[int, float] = {}
        self._overhead_s = 0.0
        self._max_drafted = _FIRST_DRAFT
        self._drafted_s: list[float] = []
        self._plain_s: list[float] = []
        self._rest_left = 0
        self._next_rest = _FIRST_REST

    def add(self, cost: VerifyCost) -> None:
        """Take the measured times of a batch size."""
        self._costs[cost.batch_size] = cost

    def has(self, batch_size: int) -> bool:
        """Whether a batch size was measured."""
        return batch_size in self._costs

    @property
    def is_resting(self) -> bool:
        """Whether the guard has drafting off for now."""
        return self._rest_left > 0

    @property
    def max_drafted(self) -> int:
        """How many nodes the next drafts need at most."""
        return self._max_drafted

    def pass_seconds(self, batch_size: int, past: int) -> Float64Array:
        """Estimated seconds of a pass over `batch_size` trees of n nodes, n = 0 .. max_width; entry 0 is infinite.

        Without a measurement the unit is the time of a one-node pass.
        """
        if not self._costs:
            times = 1 + _UNMEASURED_GROWTH * (np.arange(self._max_width + 1.0) - 1)
            times[0] = np.inf
            return times
        nearest = min(self._costs, key=lambda size: abs(np.log(size / batch_size)))
        times = self._costs[nearest].pass_seconds(past)[: self._max_width + 1]
        if nearest != batch_size:
            times = times * (batch_size / nearest) ** 0.5  # between no growth and one pass a sequence
        for width, correction in self._corrections.items():
            if width < len(times):
                times[width] *= correction
        return times

    def choose(self, values: Sequence[Sequence[float]], past: int) -> int:
        """The width N of the next pass, 1 for plain decoding.

        values: of each sequence's tree, the nodes' values, root first.
        A tree's expected tokens at n nodes are the sum of its n best values: each accepted node, and the bonus token.
        """
        times = self.pass_seconds(len(values), past)
        width = min(max(map(len, values)), len(times) - 1)
        expected = np.zeros(width)
        for each in values:
            best = np.sort(np.array(each))[::-1][:width]
            expected[: len(best)] += best
        rate = np.cumsum(expected) / (times[1 : width + 1] + self._overhead_s)
        chosen = int(np.argmax(rate)) + 1
        self._max_drafted = min(max(2 * chosen, _LEAST_DRAFT), self._max_width)
        return chosen

    def observe_plain(self, batch_size: int, past: int, pass_s: float, step_s: float) -> None:
        """Learn from a step in which nothing was drafted."""
        self._correct(batch_size, 1, past, pass_s)
        self._overhead_s += _MEMORY * (max(0.0, step_s - pass_s) - self._overhead_s)
        self._rest_left = max(0, self._rest_left - 1)

    def observe_drafted(
        self, batch_size: int, width: int, past: int, pass_s: float, step_s: float, num_tokens: int
    ) -> None:
        """Learn from a step whose trees were drafted, whatever width was chosen in the end."""
        self._correct(batch_size, width, past, pass_s)
        if not self._costs:
            return
        plain_s = (float(self.pass_seconds(batch_size, past)[1]) + self._overhead_s) * num_tokens / batch_size
        self._drafted_s.append(step_s)
        self._plain_s.append(plain_s)
        if len(self._drafted_s) == _WINDOW:
            self._judge()

    def _judge(self) -> None:
        # The middle half: a neighbour's burst in one step is not drafting's fault.
        ratios = np.sort(np.array(self._plain_s) / np.array(self._drafted_s))[_WINDOW // 4 : -_WINDOW // 4]
        if ratios.mean() < 1.0 and sum(self._plain_s) < sum(self._drafted_s):
            self._rest_left = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
        else:
            self._next_rest = _FIRST_REST
        self._drafted_s.clear()
        self._plain_s.clear()

    def _correct(self, batch_size: int, width: int, past: int, pass_s: float) -> None:
        """Move the estimate of a width towards what its passes take, slowly, and never by one outlier."""
        if not self._costs:
            return
        estimate = float(self.pass_seconds(batch_size, past)[min(width, self._max_width)])
        ratio = min(max(pass_s / estimate, 0.5), 2.0)
        old = self._corrections.get(width, 1.0)
        self._corrections[width] = old * ratio**_MEMORY
