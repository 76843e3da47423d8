"""What passes take here and now: a curve that `measuring.pass_cost` measured, corrected by the steps that
`decoding.recorder` times."""

import math
from collections.abc import Sequence

from reader_edge_runtime.decoding.planning.tree_widths import equal_width, time_at
from reader_edge_runtime.measuring.pass_cost import MAX_ROWS, PassCost

# Without a measurement: half a pass more at 16 nodes, as int8 packages of 0.1 to 0.5 B parameters were seen to cost.
_UNMEASURED_GROWTH = 0.033

_PAST_STEP = 64  # committed rows between which a curve is taken to be the same
_MEMORY = 0.1  # weight of the newest value in a mean, and in a correction, where it is more while few were seen
# A busy machine slows all together, so a plain pass moves the whole curve, while a wide one may also tell that the
# curve's shape is wrong: how much of its correction goes to the one-node pass, and to other widths.
_SHARE_OF_PLAIN, _SHARE_OF_OTHERS = 0.5, 0.7
_FADING = 0.005  # share of a wrong shape that each plain pass forgets: what made it may be over
_OUTRUN, _ENOUGH_SEEN = -0.25, 16  # a correction below which a curve was measured beside other work; passes that tell


class PassTimes:
    """Seconds of a pass over B trees of n nodes.

    Measured times come through `add`, of some batch sizes. Times of others lie between those on both sides, or are
    the nearest one's, scaled; what their passes show corrects the nearest one. Without any a fixed growth is taken, in
    units of a one-node pass, and nothing is corrected.
    is_measured: whether times are seconds of this machine.
    """

    def __init__(self, max_width: int) -> None:
        self.max_width = max_width
        self.is_measured = False
        self._costs: dict[int, PassCost] = {}
        self._curves: dict[tuple[int, int], list[float]] = {}
        self._corrections: dict[int, list[float]] = {}  # of each measured size, the logarithm for each class of widths
        self._num_seen: dict[tuple[int, int], int] = {}
        self._told_outrun: set[int] = set()
        self._classes = [max(width - 1, 0).bit_length() for width in range(max_width + 1)]

    def add(self, cost: PassCost) -> None:
        """Take the measured times of a batch size."""
        self._costs[cost.batch_size] = cost
        self._curves.clear()
        self.is_measured = True

    def has(self, batch_size: int) -> bool:
        """Whether a batch size was measured."""
        return batch_size in self._costs

    def is_in_doubt(self, batch_size: int) -> bool:
        """Whether other work seems to have run while a batch size, or the one most like it, was measured."""
        return self.is_measured and self._costs[self._nearest(batch_size)].is_in_doubt

    def seconds(self, batch_size: int, past: int, widest: int | None = None) -> list[float]:
        """Estimated seconds of a pass over `batch_size` trees of n nodes; entry 0 is infinite.

        n = 0 .. widest, but no more than were measured.
        """
        curve = self._curve(batch_size, past)[: None if widest is None else widest + 1]
        if not self.is_measured:
            return curve
        factors = [math.exp(correction) for correction in self._correction(batch_size)]
        return [time * factors[number] for time, number in zip(curve, self._classes, strict=False)]

    def padding_share(self, batch_size: int) -> float:
        """What a node takes that fills a tree up to the widest of its pass, as a share of what other nodes take."""
        return self._costs[self._nearest(batch_size)].padding_share if self._costs else 1.0

    def learn(self, widths: Sequence[int], past: int, seconds: float) -> None:
        """Move the estimates towards what a pass over trees of these widths took, never far by one outlier."""
        if not self.is_measured:
            return
        batch_size = len(widths)
        curve = self._curve(batch_size, past)
        width = min(equal_width(sum(widths), max(widths), batch_size, self.padding_share(batch_size)), len(curve) - 1)
        number = self._classes[round(width)]
        corrections = self._correction(batch_size)
        error = math.log(seconds / time_at(curve, width)) - corrections[number]
        key = self._nearest(batch_size), number
        num_seen = self._num_seen.get(key, 0)
        self._num_seen[key] = num_seen + 1
        step = max(_MEMORY, 1 / (num_seen + 2)) * min(max(error, -0.7), 0.7)
        if number == 0:
            plain = corrections[0] + step
            corrections[:] = [other + step + _FADING * (plain - other - step) for other in corrections]
        else:
            shares = [_SHARE_OF_PLAIN] + [_SHARE_OF_OTHERS] * (len(corrections) - 1)
            shares[number] = 1.0
            corrections[:] = [other + step * share for other, share in zip(corrections, shares, strict=True)]

    def take_outrun(self) -> list[int]:
        """Batch sizes whose passes take clearly less than was measured; each is reported once."""
        outrun = {
            size
            for (size, number), num in self._num_seen.items()
            if num >= _ENOUGH_SEEN and self._corrections[size][number] < _OUTRUN
        } - self._told_outrun
        self._told_outrun |= outrun
        return sorted(outrun)

    def _correction(self, batch_size: int) -> list[float]:
        return self._corrections.setdefault(self._nearest(batch_size), [0.0] * (self._classes[-1] + 1))

    def _nearest(self, batch_size: int) -> int:
        """The measured size that is most like this one."""
        return min(self._costs, key=lambda size: abs(math.log(size / batch_size)))

    def _curve(self, batch_size: int, past: int) -> list[float]:
        key = (batch_size, past // _PAST_STEP)
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = self._measured_curve(batch_size, (key[1] + 0.5) * _PAST_STEP)
        return curve

    def _measured_curve(self, batch_size: int, past: float) -> list[float]:
        if not self._costs:
            return [math.inf, *(1 + _UNMEASURED_GROWTH * n for n in range(self.max_width))]
        below = max((size for size in self._costs if size <= batch_size), default=min(self._costs))
        above = min((size for size in self._costs if size >= batch_size), default=max(self._costs))
        if above <= below:  # measured itself, or beyond all that were
            growth = (batch_size / above) ** 0.5  # between no growth and one pass a sequence
            return [time * growth for time in self._times_of(above, past)]
        share = math.log(batch_size / below) / math.log(above / below)
        pairs = zip(self._times_of(below, past), self._times_of(above, past, MAX_ROWS // batch_size), strict=False)
        return [few ** (1 - share) * many**share for few, many in pairs]

    def _times_of(self, size: int, past: float, widest: int = 0) -> list[float]:
        """What was measured of a batch size; up to `widest` nodes, wider trees grow as the last ones did."""
        times: list[float] = self._costs[size].pass_seconds(past).tolist()
        step = times[-1] - times[-2] if len(times) > 2 else 0.0
        times += [times[-1] + step * further for further in range(1, widest + 2 - len(times))]
        return times[: self.max_width + 1]
