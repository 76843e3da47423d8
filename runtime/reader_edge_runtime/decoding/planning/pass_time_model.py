"""Predicts how long a pass over so many tree nodes takes: a curve that `measuring.pass_cost` measured once, corrected
by the steps that `decoding.recorder` times.

T(n, past) = (products(n) + r * read(past) + a * n * attended(past)) * c, where the steps teach c for each class of
widths, and r and a for each depth, a class of pasts: what was not measured so far behind, or sees a window alone, or
comes from slower memory, shows in attention's parts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.decoding.planning.tree_widths import equal_width, time_at
from reader_edge_runtime.measuring.pass_cost import BATCH_WIDTH, MAX_ROWS, PassCost

# Without a measurement: half a pass more at 16 nodes, as int8 packages of 0.1 to 0.5 B parameters were seen to cost.
_UNMEASURED_GROWTH = 0.033

_TYPICAL_PAST, _LEAST_WIDE = 2048, 8  # behind which, and by how wide passes at least, prompts are read
_PAST_STEP = 64  # committed rows between which a curve is taken to be the same
_MEMORY = 0.1  # weight of the newest value in a mean, and in a correction, where it is more while few were seen
# A busy machine slows all together, so a plain pass moves the whole curve, while a wide one may also tell that the
# curve's shape is wrong: how much of its correction goes to the one-node pass, and to other widths.
_SHARE_OF_PLAIN, _SHARE_OF_OTHERS = 0.5, 0.7
_FADING = 0.005  # share of a wrong shape that each plain pass forgets: what made it may be over
_LEAST_SHARE = 0.2  # of a pass's time, so that it tells of attention
_DOUBT = 0.02  # squares of the shares from which on attention explains more of an error than all else
_DEPTH_ROWS = 1024  # of the first depth; each further one ends at twice as many
_MOST_ERROR = 0.7  # in a logarithm, that one pass may show
_OUTRUN, _ENOUGH_SEEN = -0.25, 16  # a correction below which a curve was measured beside other work; passes that tell


@dataclass(slots=True)
class _Depth:
    """What passes showed of attention's time at about a past: logarithms of the factors r and a.

    weight: of the passes behind it, each the squares of their parts' shares of its time.
    """

    logs: tuple[float, float] = (0.0, 0.0)
    weight: float = 0.0

    def parts(self, attention: tuple[float, float]) -> tuple[float, float]:
        """Seconds to read a text's rows, and to attend to them from a node."""
        return math.exp(self.logs[0]) * attention[0], math.exp(self.logs[1]) * attention[1]

    def learn(self, error: float, shares: tuple[float, float]) -> float:
        """Take what the parts explain of an error in a pass's logarithm, by their shares of its time; returns the rest.

        A least-squares step, which is larger while few passes were seen, and the larger the shares.
        """
        squares = shares[0] ** 2 + shares[1] ** 2
        step = max(_MEMORY, 1 / (1 + self.weight)) * error / (squares + _DOUBT)
        self.logs = self.logs[0] + step * shares[0], self.logs[1] + step * shares[1]
        self.weight += squares
        return error - step * squares


class PassTimeModel:
    """Seconds of a pass over B trees of n nodes, each behind as many committed rows as its text has.

    Measured times come through `take`, of one batch size. The products of a pass of another take as long as those of
    one of as many nodes in all, and each of its texts is attended to as a single one is; what passes show corrects
    that, for batches of about their size. Without a measurement a fixed growth is taken, in units of a one-node pass,
    and nothing is corrected.
    """

    def __init__(self, max_width: int) -> None:
        self.max_width = max_width
        self._cost: PassCost | None = None
        self._products: dict[int, list[float]] = {}  # by batch size, uncorrected
        self._measured_attention: dict[int, tuple[float, float]] = {}  # of a text, by past
        self._depths: dict[int, _Depth] = {}
        self._corrections: dict[int, list[float]] = {}  # of a class of batches, the logarithm for each of widths
        self._num_seen: dict[tuple[int, int], int] = {}
        self._is_outrun_reported = False
        self._classes = [max(width - 1, 0).bit_length() for width in range(max_width + 1)]

    def take(self, cost: PassCost) -> None:
        """Take what was measured."""
        self._cost = cost
        self._products.clear()
        self._measured_attention.clear()

    @property
    def is_measured(self) -> bool:
        """Whether times are seconds of this machine."""
        return self._cost is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether other work seems to have run while passes were measured."""
        return self._cost is not None and self._cost.is_in_doubt

    def seconds(self, pasts: Sequence[int], widest: int | None = None) -> list[float]:
        """Estimated seconds of a pass over trees of n nodes, one behind each of these pasts; entry 0 is infinite.

        n = 0 .. widest, but no more than are known.
        """
        products = self._products_of(len(pasts))[: None if widest is None else widest + 1]
        if not self.is_measured:
            return products
        factors = [math.exp(correction) for correction in self._correction(len(pasts))]
        read_s, node_s = map(sum, zip(*map(self._attention, pasts), strict=True))
        numbered = enumerate(zip(products, self._classes, strict=False))
        return [(time + read_s + node_s * n) * factors[number] for n, (time, number) in numbered]

    def further_seconds(self, pasts: Sequence[int]) -> list[float]:
        """Of each text, by how much a node of its tree takes longer than the mean one; below 0 where it takes less."""
        if len(pasts) == 1 or not self.is_measured:
            return [0.0] * len(pasts)
        factor = math.exp(self._correction(len(pasts))[0])
        node_s = [factor * self._attention(past)[1] for past in pasts]
        mean_s = sum(node_s) / len(node_s)
        return [each - mean_s for each in node_s]

    def prompt_tokens_per_s(self) -> float:
        """About how fast a prompt of a few thousand tokens is read, by the widest pass; 0 where that is not known."""
        seconds = self.seconds([_TYPICAL_PAST])
        return (len(seconds) - 1) / seconds[-1] if self.is_measured and len(seconds) > _LEAST_WIDE else 0.0

    @property
    def padding_share(self) -> float:
        """What a node takes that fills a tree up to the widest of its pass, as a share of what other nodes take."""
        return 1.0 if self._cost is None else self._cost.padding_share

    def learn(self, widths: Sequence[int], pasts: Sequence[int], seconds: float) -> None:
        """Move the estimates towards what a pass over trees of these widths took, never far by one outlier.

        pasts: of each tree, committed rows.
        """
        if not self.is_measured:
            return
        batch_size = len(widths)
        products = self._products_of(batch_size)
        widest = max(widths)
        width = min(equal_width(sum(widths), widest, batch_size, self.padding_share), len(products) - 1)
        number = self._classes[round(width)]
        corrections = self._correction(batch_size)
        parts: dict[int, tuple[float, float]] = {}  # by depth, seconds to read texts and to attend to them
        for own, past in zip(widths, pasts, strict=True):
            read_s, node_s = self._attention(past)
            before = parts.get(_depth_of(past), (0.0, 0.0))
            attended_s = node_s * (own + self.padding_share * (widest - own))
            parts[_depth_of(past)] = before[0] + read_s, before[1] + attended_s
        pass_s = time_at(products, width) + sum(map(sum, parts.values()))
        error = math.log(seconds / pass_s) - corrections[number]
        error = min(max(error, -_MOST_ERROR), _MOST_ERROR)
        for depth_number, (read_s, attended_s) in parts.items():
            if read_s + attended_s >= _LEAST_SHARE * pass_s:
                depth = self._depths.setdefault(depth_number, self._depth(depth_number))
                error = depth.learn(error, (read_s / pass_s, attended_s / pass_s))
        key = _class_of(batch_size), number
        num_seen = self._num_seen.get(key, 0)
        self._num_seen[key] = num_seen + 1
        step = max(_MEMORY, 1 / (num_seen + 2)) * error
        if number == 0:
            plain = corrections[0] + step
            corrections[:] = [other + step + _FADING * (plain - other - step) for other in corrections]
        else:
            shares = [_SHARE_OF_PLAIN] + [_SHARE_OF_OTHERS] * (len(corrections) - 1)
            shares[number] = 1.0
            corrections[:] = [other + step * share for other, share in zip(corrections, shares, strict=True)]

    def take_outrun(self) -> bool:
        """Whether passes of the measured batch size take clearly less than was measured; reported once."""
        if self._cost is None or self._is_outrun_reported:
            return False
        own = _class_of(self._cost.batch_size)
        self._is_outrun_reported = any(
            size == own and num >= _ENOUGH_SEEN and self._corrections[size][number] < _OUTRUN
            for (size, number), num in self._num_seen.items()
        )
        return self._is_outrun_reported

    def _correction(self, batch_size: int) -> list[float]:
        return self._corrections.setdefault(_class_of(batch_size), [0.0] * (self._classes[-1] + 1))

    def _depth(self, number: int) -> _Depth:
        """That of a class of pasts; where no pass was near them, as the last one before."""
        if number in self._depths:
            return self._depths[number]
        before = [each for each in self._depths if each < number]
        return _Depth(self._depths[max(before)].logs) if before else _Depth()

    def _attention(self, past: int) -> tuple[float, float]:
        """Seconds to read a text behind so many rows, and for each node of its tree, as passes at its depth showed."""
        step = past // _PAST_STEP
        if self._cost is not None and step not in self._measured_attention:
            read_s, node_s = self._cost.attention((step + 0.5) * _PAST_STEP)
            self._measured_attention[step] = read_s / self._cost.batch_size, node_s / self._cost.batch_size
        return self._depth(_depth_of(past)).parts(self._measured_attention[step])

    def _products_of(self, batch_size: int) -> list[float]:
        """Seconds that passes over n = 0 nodes (infinite) and on take behind the shortest past, uncorrected."""
        if batch_size not in self._products:
            self._products[batch_size] = self._measured_products(batch_size)
        return self._products[batch_size]

    def _measured_products(self, batch_size: int) -> list[float]:
        if self._cost is None:
            return [math.inf, *(1 + _UNMEASURED_GROWTH * n for n in range(self.max_width))]
        share, times = batch_size / self._cost.batch_size, self._cost.pass_seconds(self._cost.pasts[0])
        widest = len(times) - 1
        most = widest if share == 1 else max(1, min(widest, MAX_ROWS // batch_size))
        numbers = np.arange(1, min(most, self.max_width) + 1)
        seconds = np.interp(share * numbers, np.arange(1, widest + 1), times[1:])
        step = times[-1] - times[-2] if widest > 1 else times[-1]  # beyond the widest, it grows as the last ones did
        seconds += step * np.maximum(share * numbers - widest, 0)
        text_s = np.interp(numbers, (1, BATCH_WIDTH), self._cost.text_s)
        seconds += text_s * max(share - 1, 0.0)
        return [math.inf, *seconds.tolist()]


def _class_of(batch_size: int) -> int:
    """Batches that teach each other: 1, 2, 3 to 4, 5 to 8 ..."""
    return (batch_size - 1).bit_length()


def _depth_of(past: int) -> int:
    """Pasts that teach each other: up to 1023, to 2047, to 4095 ..."""
    return (past // _DEPTH_ROWS).bit_length()
