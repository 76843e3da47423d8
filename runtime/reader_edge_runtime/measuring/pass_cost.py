"""What a pass costs: how long one over B trees of n nodes takes on this machine.

T(B, n, past) is piecewise and not convex, so it is measured: passes over a grid of widths, interleaved, each twice in a
row, since the first one after others is slower; and of each cell the fastest, because a busy neighbour only adds time.
How far the second fastest round is behind says whether there was one.
Where a wider pass takes less, or two narrower ones together, that bounds what a pass needs to take.

One text is measured: a batch's pass takes about what one over as many nodes does (`decoding.planning.pass_time_model`).
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import Pass, Target

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PASTS = (64, 1024, 4096)  # far apart: what a further row takes is small beside the noise of a pass
MAX_WIDTH = WIDTHS[-1]
MAX_ROWS = 64  # of a batch's pass: B * N
MAX_CACHED_ROWS = 8192  # of all texts of a batch

_MIN_ROUNDS = 2
_MAX_ROUNDS = 6
# Of a 135M on a shared machine, T(8)/T(1) lay from 2.3 to 2.8 in four measurements below this, and from 1.6 to 4.2 in
# eight above it.
_MOST_SPREAD = 0.2
_PASSES = 2  # of a cell in a round
_ROW_ROUNDS = 5
_LONG_S = 1.0  # a wait whose reason is a warning where nobody listens
_MAX_GRID_S = 10.0  # what a slow model's grid may take: somebody waits for the first word
_LEAST_WIDEST = 8
BATCH_WIDTH = 8  # nodes of the wide trees by which batches are measured,
_BATCH = 4  # and their texts

_LOG = logging.getLogger("reader_edge.measuring")


@dataclass(frozen=True, slots=True)
class PassCost:
    """Measured pass times of a batch size: seconds, float64 (P, W), at P committed lengths and W tree sizes, ascending.

    row_s: seconds that the logits of one more row take; 0 where they were not measured. padding_share: what a node
    takes that only fills a tree of a batch up, as a share of what others take, from 0 to 1. text_s: seconds that each
    further text adds to a pass over as many nodes, where its trees have one node, and where they have BATCH_WIDTH.
    spread: by how much a cell's second fastest round took longer than its fastest, as a share; the median of the cells.
    num_measured: how often all was measured.
    """

    batch_size: int
    pasts: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: Float64Array
    row_s: float = 0.0
    padding_share: float = 1.0
    text_s: tuple[float, float] = (0.0, 0.0)
    spread: float = 0.0
    num_measured: int = 1

    @property
    def is_in_doubt(self) -> bool:
        """Whether other work seems to have run meanwhile."""
        return self.spread > _MOST_SPREAD

    def merged(self, other: "PassCost") -> "PassCost":
        """The lesser times of two measurements; not in doubt where one was not, or where they agree."""
        num_measured = self.num_measured + other.num_measured
        if (self.pasts, self.widths) != (other.pasts, other.widths):
            return replace(other, num_measured=num_measured)
        pair = np.stack([self.seconds, other.seconds])
        calmer = min(self, other, key=lambda cost: cost.spread)
        spread = min(calmer.spread, _spread(pair.reshape(2, -1)))
        return replace(calmer, seconds=pair.min(axis=0), spread=spread, num_measured=num_measured)

    def bounded(self) -> "PassCost":
        """What passes need to take, as plans have it: where others take less, that bounds what was measured."""
        return replace(self, seconds=np.stack([bounded(row, self.widths) for row in self.seconds]))

    def pass_seconds(self, past: float) -> Float64Array:
        """Seconds of a pass over trees of n nodes at a past length, float64 for n = 0 (infinite) to the widest.

        Between measured points they are interpolated. Beyond the longest past each further row takes what one between
        the last two takes to read, and to attend to from n nodes.
        """
        at_past = np.array([np.interp(past, self.pasts, column) for column in self.seconds.T])
        numbers = np.arange(self.widths[-1] + 1)
        times: Float64Array = np.interp(numbers, self.widths, at_past)
        times[0] = np.inf
        read_s, node_s = self._further_rows(past)
        times += read_s + node_s * numbers
        return times

    def attention(self, past: float) -> tuple[float, float]:
        """What a pass takes more than behind the shortest past: seconds to read a text's rows, and for each node.

        Attention grows with the past of a text; what products take does not.
        """
        parts = np.array([_row_parts(self.widths, self.seconds[0], row) for row in self.seconds])
        read_s, node_s = (float(np.interp(past, self.pasts, column)) for column in parts.T)
        further = self._further_rows(past)
        return read_s + further[0], node_s + further[1]

    def _further_rows(self, past: float) -> tuple[float, float]:
        """The same of a past beyond the longest, over that."""
        if past <= self.pasts[-1] or len(self.pasts) == 1:
            return 0.0, 0.0
        share = (past - self.pasts[-1]) / (self.pasts[-1] - self.pasts[-2])
        read_s, node_s = _row_parts(self.widths, self.seconds[-2], self.seconds[-1])
        return share * read_s, share * node_s


def measure_pass_cost(
    target: Target,
    batch_size: int = 1,
    max_seconds: float = 4.0,
    on_progress: Callable[[int, int], None] | None = None,
) -> PassCost:
    """Time passes over the grid, within about `max_seconds` but at least two rounds; of a slow model, fewer cells.

    on_progress: gets rounds done and the most there may be; without it, a line of the log warns of a long wait.
    """
    max_past = target.manifest.max_context - MAX_WIDTH
    longest = min(max_past, max(MAX_CACHED_ROWS // batch_size, PASTS[0]))
    pasts = tuple(past for past in PASTS if past <= longest) or (max(1, longest),)
    widest = min(MAX_ROWS // batch_size, target.manifest.max_context - pasts[-1])
    widths = tuple(width for width in WIDTHS if width <= widest) or (1,)
    cache = _new_cache(target, batch_size, pasts[-1], widths[-1])
    grid = _Grid(pasts, widths)
    if on_progress is not None:
        on_progress(0, _MAX_ROUNDS)
    first = _first_seconds(target, cache, batch_size, grid)
    grid = grid.within(_MAX_GRID_S, first)
    least_s = grid.least_seconds(first)
    expected_s = max(least_s, min(max_seconds, least_s * _MAX_ROUNDS / _MIN_ROUNDS))
    is_unexplained = on_progress is None and expected_s > _LONG_S
    level = logging.WARNING if is_unexplained else logging.INFO
    _LOG.log(
        level,
        "Measuring what passes take on this machine, for later starts too: about %d s, more beside other work.",
        max(1, round(expected_s)),
    )
    for past, width in grid.cells[:: len(grid.widths)] + grid.cells[-1:]:
        _pass_seconds(target, cache, batch_size, past, width)  # first passes allocate
    rounds: list[list[float]] = []
    start = time.perf_counter()
    while len(rounds) < _MIN_ROUNDS or (len(rounds) < _MAX_ROUNDS and time.perf_counter() - start < max_seconds):
        rounds.append(
            [
                min(_pass_seconds(target, cache, batch_size, *cell) for _ in range(grid.num_passes))
                for cell in grid.cells
            ]
        )
        if on_progress is not None:
            on_progress(len(rounds), _MAX_ROUNDS)
    times = np.array(rounds)
    seconds = times.min(axis=0).reshape(len(grid.pasts), len(grid.widths))
    num_row_rounds = _ROW_ROUNDS if grid.num_passes == _PASSES else 1
    row_s = _row_seconds(target, cache, batch_size, grid.pasts[0], grid.widths[-1], num_row_rounds)
    padding_share, text_s = _batch_facts(target, cache, grid.pasts[0], grid.widths[-1], num_row_rounds)
    target.release_memory()  # drafts are seldom as wide
    return PassCost(batch_size, grid.pasts, grid.widths, seconds, row_s, padding_share, text_s, _spread(times))


def single_pass_seconds(target: Target, max_seconds: float) -> float:
    """Seconds of the fastest pass of one node, of two and as many more as `max_seconds` hold."""
    past = max(1, min(PASTS[0], target.manifest.max_context - 1))
    cache = target.new_cache(1, past + 1)
    start, fastest = time.perf_counter(), math.inf
    _pass_seconds(target, cache, 1, past, 1)  # first passes allocate
    while fastest == math.inf or time.perf_counter() - start < max_seconds:
        fastest = min(fastest, _pass_seconds(target, cache, 1, past, 1))
    return fastest


def _spread(times: Float64Array) -> float:
    """See PassCost; times: of rounds (at least 2) by cells."""
    fastest, second = np.sort(times, axis=0)[:2]
    return float(np.median(second / fastest - 1))


@dataclass(frozen=True, slots=True)
class _Grid:
    """What is timed; num_passes: of each cell in a round."""

    pasts: tuple[int, ...]
    widths: tuple[int, ...]
    num_passes: int = _PASSES

    @property
    def cells(self) -> list[tuple[int, int]]:
        return [(past, width) for past in self.pasts for width in self.widths]

    def within(self, max_seconds: float, first: Mapping[int, float]) -> "_Grid":
        """Cut down where its rounds take longer: cells timed once, then fewer widths and pasts.

        first: seconds of passes of one and of a few nodes.
        """
        grid = self
        while grid.least_seconds(first) > max_seconds:
            if grid.num_passes > 1:
                grid = replace(grid, num_passes=1)
            elif grid.widths[-1] > _LEAST_WIDEST:
                grid = replace(grid, widths=grid.widths[:-1])
            elif len(grid.pasts) > 2:
                grid = replace(grid, pasts=(grid.pasts[0], grid.pasts[-1]))
            else:
                return replace(grid, widths=tuple(width for width in grid.widths if width in (1, 2, 4, 8)))
        return grid

    def least_seconds(self, first: Mapping[int, float]) -> float:
        """About what its rounds take, if there are no more than must be; wider passes are on a line through `first`,
        which does not fall, though beside other work the first passes may."""
        widths = sorted(first)
        slope = max(0.0, first[widths[-1]] - first[1]) / max(1, widths[-1] - 1)
        a_past = sum(first[1] + slope * (width - 1) for width in self.widths)
        return a_past * len(self.pasts) * self.num_passes * _MIN_ROUNDS


def _new_cache(target: Target, batch_size: int, past: int, width: int) -> Cache:
    """One whose rows have memory of their own, as a text's have: it takes time to read."""
    cache = target.new_cache(batch_size, past + width)
    for slot in range(batch_size):
        cache.fill(slot, past)
    return cache


def _first_seconds(target: Target, cache: Cache, batch_size: int, grid: _Grid) -> dict[int, float]:
    """Seconds of passes of one node and of _LEAST_WIDEST, or the most there may be; each the second of its kind."""
    widths = {1, min(_LEAST_WIDEST, grid.widths[-1])}
    return {
        width: [_pass_seconds(target, cache, batch_size, grid.pasts[0], width) for _ in range(2)][1]
        for width in sorted(widths)
    }


def _row_seconds(target: Target, cache: Cache, batch_size: int, past: int, width: int, num_rounds: int) -> float:
    """What a row of logits adds: passes with all their rows against passes with one, in turn."""
    if width == 1:
        return 0.0
    rounds = [
        [_pass_seconds(target, cache, batch_size, past, width, num_rows) for num_rows in (width, 1)]
        for _ in range(num_rounds)
    ]
    all_rows, one_row = np.min(rounds, axis=0)
    return max(0.0, float(all_rows - one_row)) / (batch_size * (width - 1))


def _batch_facts(
    target: Target, single: Cache, past: int, width: int, num_rounds: int
) -> tuple[float, tuple[float, float]]:
    """`padding_share` and `text_s`, by passes in turn in which no tree of a batch is wide, one is, and all are.

    single: a cache for passes over as many nodes of one text. width: nodes of the widest of them.
    """
    width = min(width // _BATCH, BATCH_WIDTH)
    if width < 2:
        return 1.0, (0.0, 0.0)
    batch = _new_cache(target, _BATCH, past, width)
    passes = [(batch, [width] * num_wide + [1] * (_BATCH - num_wide)) for num_wide in (0, 1, _BATCH)]
    passes += [(single, [_BATCH]), (single, [_BATCH * width])]
    rounds = [
        [_seconds(target, cache, past, _trees(target, widths)) for cache, widths in passes] for _ in range(num_rounds)
    ]
    none, one, every, as_none, as_every = (float(each) for each in np.min(rounds, axis=0))
    text_s = max(0.0, none - as_none) / (_BATCH - 1), max(0.0, every - as_every) / (_BATCH - 1)
    if every <= none:
        return 1.0, text_s
    without_padding = 1 / _BATCH  # of what all wide trees add, where padding takes nothing
    share = ((one - none) / (every - none) - without_padding) / (1 - without_padding)
    return float(np.clip(share, 0, 1)), text_s


def _pass_seconds(
    target: Target, cache: Cache, batch_size: int, past: int, width: int, num_rows: int | None = None
) -> float:
    """Time a pass over trees of one width; None: all rows' logits."""
    return _seconds(target, cache, past, _trees(target, [width] * batch_size), num_rows)


def _seconds(target: Target, cache: Cache, past: int, trees: Sequence[DraftTree], num_rows: int | None = None) -> float:
    for slot in range(len(trees)):
        cache.assume(slot, past)
    wanted = Pass(0, trees, [range(num_rows or len(tree)) for tree in trees])
    start = time.perf_counter()
    target.forward(cache, wanted)
    return time.perf_counter() - start


def _trees(target: Target, widths: Sequence[int]) -> list[DraftTree]:
    """A tree of each width, its tokens drawn from the vocabulary: those that are alike would share their experts."""
    generator = np.random.Generator(np.random.Philox(0))
    token_ids = iter(generator.integers(target.manifest.vocab_size, size=sum(widths)).tolist())
    trees = []
    for width in widths:
        tree = DraftTree.root(next(token_ids))
        for node in range(1, width):  # every second one branches off the root, as in drafts
            tree.add(next(token_ids), (node - 1) * (node % 2), "")
        trees.append(tree)
    return trees


def bounded(seconds: Float64Array, widths: Sequence[int]) -> Float64Array:
    """Times (W,) of ascending widths, none above a wider one's, or above those of two that are as wide together."""
    times: Float64Array = np.minimum.accumulate(seconds[::-1])[::-1]
    for i, width in enumerate(widths):
        for j in range(i):
            rest = np.searchsorted(widths, width - widths[j])
            times[i] = min(times[i], times[j] + times[rest])
    return times


def _row_parts(widths: Sequence[int], shorter: Float64Array, longer: Float64Array) -> tuple[float, float]:
    """Seconds by which a longer past takes more, of any width, and for each node: the least squares of all widths.

    One width's difference is small beside its noise, which is a share of its time. Neither is below 0.
    """
    weights, numbers = 1 / longer, np.array(widths, np.float64)
    differences = (longer - shorter) * weights
    both = np.stack([weights, numbers * weights], axis=1)
    read_s, node_s = np.linalg.lstsq(both, differences, rcond=None)[0].tolist()
    if read_s < 0 or len(widths) == 1:
        return 0.0, max(0.0, float(both[:, 1] @ differences / (both[:, 1] @ both[:, 1])))
    if node_s < 0:
        return max(0.0, float(weights @ differences / (weights @ weights))), 0.0
    return read_s, node_s
