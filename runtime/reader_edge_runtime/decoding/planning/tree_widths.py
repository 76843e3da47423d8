"""How many nodes each tree of a pass gets: those with the most expected tokens per second on this machine.

Nodes that fill a tree up to the widest one of its pass take a share of what others take (`padding_share`): where that
is all of it, trees are equally wide, and the sequence with the strongest evidence sets the width.
"""

from collections.abc import Sequence
from itertools import zip_longest

_MARGIN = 1.02  # by how much drafting must promise to beat plain decoding, since estimates err
# By how much trees that differ must beat equal ones, whose further nodes teach: of what the target says of them, later
# drafts are made.
_MARGIN_OF_UNEQUAL = 1.1
_LEAST_NODE_S = 1e-9
_WIDEST = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # that are looked at, where trees differ

Gains = Sequence[Sequence[float]]  # of each tree, expected tokens that each further node adds, best first


def best_widths(
    gains: Gains, times: Sequence[float], padding_share: float, beside_s: float, further_s: Sequence[float]
) -> list[int]:
    """Nodes of each tree; all 1 where none beats plain decoding by the margin.

    times: seconds of a pass over trees of n nodes each; entry 0 is infinite. beside_s: seconds beside the pass.
    further_s: of each tree, by how much one of its nodes takes longer than the mean one, as behind a longer past.
    """
    plain = _MARGIN * len(gains) / (times[1] + beside_s)
    equal, rate = _equal_widths(gains, times, beside_s, plain)
    if len(gains) == 1 or padding_share == 1:
        return equal
    least = rate * (_MARGIN_OF_UNEQUAL if max(equal) > 1 else 1)
    unequal = _unequal_widths(gains, times, padding_share, beside_s, further_s, least)
    return unequal if max(unequal) > 1 else equal


def equal_width(num_nodes: int, widest: int, batch_size: int, padding_share: float) -> float:
    """How wide trees that are equally wide would be, of a pass that takes as long as one of so many nodes in all."""
    mean = num_nodes / batch_size
    return mean + padding_share * (widest - mean)


def time_at(times: Sequence[float], width: float) -> float:
    """Between the times of whole widths. width: from 1 to the last of them."""
    below = int(width)
    return times[below] if below == width else times[below] + (width - below) * (times[below + 1] - times[below])


def _equal_widths(gains: Gains, times: Sequence[float], beside_s: float, best: float) -> tuple[list[int], float]:
    chosen, expected = 1, float(len(gains))
    steps = zip(map(sum, zip_longest(*gains, fillvalue=0.0)), times[2:], strict=False)
    for width, (gain, seconds) in enumerate(steps, start=2):
        expected += gain
        rate = expected / (seconds + beside_s)
        if rate > best:
            chosen, best = width, rate
    return [chosen] * len(gains), best


def _unequal_widths(
    gains: Gains,
    times: Sequence[float],
    padding_share: float,
    beside_s: float,
    further_s: Sequence[float],
    best: float,
) -> list[int]:
    """Nodes go in by what they add for their time, until a further one lowers the rate."""
    batch_size = len(gains)
    mean_s = max((times[-1] - times[1]) / (batch_size * max(len(times) - 2, 1)), _LEAST_NODE_S)
    own_s = [(1 - padding_share) * each for each in further_s]
    worth = [1 / max(mean_s + each, _LEAST_NODE_S) for each in own_s]
    order = sorted(
        ((gain * worth[b], gain, b, width) for b, each in enumerate(gains) for width, gain in enumerate(each, start=2)),
        reverse=True,
    )
    chosen = [1] * batch_size
    for widest in _within(1 + max(map(len, gains))):
        nodes = [(gain, b) for _, gain, b, width in order if width <= widest]
        found, expected, more_s = 0, float(batch_size), 0.0
        for number in range(len(nodes) + 1):
            if number:
                gain, b = nodes[number - 1]
                expected, more_s = expected + gain, more_s + own_s[b]
            width = equal_width(batch_size + number, widest, batch_size, padding_share)
            if width > len(times) - 1:
                break
            rate = expected / (time_at(times, width) + more_s + beside_s)
            if rate > best:
                found, best = number, rate
        if found:
            chosen = [1] * batch_size
            for _, b in nodes[:found]:
                chosen[b] += 1
    return chosen


def _within(most: int) -> list[int]:
    """The widest trees to look at, where none has more nodes than `most`."""
    return [width for width in _WIDEST if width < most] + [most] * (most > 1)
