"""What a pass takes here and now: the measured curve, corrected by what passes really take."""

import math

from reader_edge_runtime.measuring.verify_cost import VerifyCost

# Without a measurement: half a pass more at 16 nodes, as int8 packages of 0.1 to 0.5 B parameters were seen to cost.
_UNMEASURED_GROWTH = 0.033

_PAST_STEP = 64  # committed rows between which a curve is taken to be the same
_MEMORY = 0.1  # share of the newest pass in a correction, more while few were seen
# What a pass tells of the one-node pass, and of other widths: a busy machine slows all together, so a plain pass moves
# the whole curve, while a wide one may also tell that the curve's shape is wrong.
_SHARES_OF_PLAIN = (1.0, 1.0)
_SHARES_OF_WIDE = (0.5, 0.7)
_FADING = 0.005  # share of a wrong shape that each plain pass forgets: what made it may be over


class PassTimes:
    """Seconds of a pass over B trees of n nodes.

    Measured times come through `add`; the nearest batch size is scaled for others, and without any a fixed growth is
    assumed, in units of a one-node pass, and nothing is corrected.
    """

    def __init__(self, max_width: int) -> None:
        self.max_width = max_width
        self._costs: dict[int, VerifyCost] = {}
        self._curves: dict[tuple[int, int], list[float]] = {}
        self._corrections: dict[int, list[float]] = {}  # of each batch size, the logarithm for each class of widths
        self._num_seen: dict[tuple[int, int], int] = {}
        self._classes = [max(width - 1, 0).bit_length() for width in range(max_width + 1)]

    def add(self, cost: VerifyCost) -> None:
        """Take the measured times of a batch size."""
        self._costs[cost.batch_size] = cost
        self._curves.clear()

    def has(self, batch_size: int) -> bool:
        """Whether a batch size was measured."""
        return batch_size in self._costs

    @property
    def is_measured(self) -> bool:
        """Whether times are seconds of this machine."""
        return bool(self._costs)

    def seconds(self, batch_size: int, past: int) -> list[float]:
        """Estimated seconds of a pass over `batch_size` trees of n nodes, n = 0 .. max_width; entry 0 is infinite."""
        curve = self._curve(batch_size, past)
        if not self._costs:
            return curve
        factors = [math.exp(correction) for correction in self._correction(batch_size)]
        return [time * factors[number] for time, number in zip(curve, self._classes, strict=False)]

    def learn(self, batch_size: int, width: int, past: int, seconds: float) -> None:
        """Move the estimates towards what a pass took, never far by one outlier."""
        if not self._costs:
            return
        curve = self._curve(batch_size, past)
        width = min(width, len(curve) - 1)
        number = self._classes[width]
        corrections = self._correction(batch_size)
        error = math.log(seconds / curve[width]) - corrections[number]
        num_seen = self._num_seen.get((batch_size, number), 0)
        self._num_seen[batch_size, number] = num_seen + 1
        step = max(_MEMORY, 1 / (num_seen + 2)) * min(max(error, -0.7), 0.7)
        shares = _SHARES_OF_PLAIN if number == 0 else _SHARES_OF_WIDE
        for other in range(len(corrections)):
            corrections[other] += step * (shares[min(other, 1)] if other != number else 1.0)
            if number == 0:
                corrections[other] += _FADING * (corrections[0] - corrections[other])

    def _correction(self, batch_size: int) -> list[float]:
        return self._corrections.setdefault(batch_size, [0.0] * (self._classes[-1] + 1))

    def _curve(self, batch_size: int, past: int) -> list[float]:
        key = (batch_size, past // _PAST_STEP)
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = self._measured_curve(batch_size, (key[1] + 0.5) * _PAST_STEP)
        return curve

    def _measured_curve(self, batch_size: int, past: float) -> list[float]:
        if not self._costs:
            return [math.inf, *(1 + _UNMEASURED_GROWTH * n for n in range(self.max_width))]
        nearest = min(self._costs, key=lambda size: abs(math.log(size / batch_size)))
        growth = (batch_size / nearest) ** 0.5  # between no growth and one pass a sequence
        times: list[float] = self._costs[nearest].pass_seconds(past)[: self.max_width + 1].tolist()
        return [time * growth for time in times]
