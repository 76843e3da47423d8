"""The frontier of drafting on recorded answers: what our trees reach, and what better evidence, cheaper passes and more
memory would. Counts are replayed and pass times measured; seconds and speeds are modelled from both."""

from dataclasses import dataclass

from reader_edge.bench.frontier.draft_stores import StoreSize
from reader_edge.bench.frontier.head import HeadNeed
from reader_edge.bench.frontier.pass_curve import PassCurve
from reader_edge.bench.frontier.rejections import Rejections
from reader_edge_runtime.stats import GenerationStats


@dataclass(frozen=True, slots=True)
class Reach:
    """What a way of drafting reaches.

    passes_s: seconds of all its passes. beside_s: of drafting and learning in one step. store_bytes: at the end.
    """

    stats_by_task: dict[str, GenerationStats]
    rejections: Rejections
    passes_s: float
    beside_s: float
    store_bytes: dict[str, int]

    @property
    def stats(self) -> GenerationStats:
        """Of all tasks together."""
        return GenerationStats.total(self.stats_by_task.values())

    @property
    def step_s(self) -> float:
        """The mean step's seconds."""
        return self.passes_s / self.stats.num_steps + self.beside_s

    @property
    def tokens_per_s(self) -> float:
        return self.stats.acceptance_length / self.step_s

    def tokens_per_s_at(self, pass_s: float) -> float:
        """If every pass took so long."""
        return self.stats.acceptance_length / (pass_s + self.beside_s)


@dataclass(frozen=True, slots=True)
class Speculated:
    """Our trees with a package's speculator that is asked in every step, and without it; each answer drafted afresh."""

    asked: Reach
    without: Reach

    @property
    def needed(self) -> float:
        """Tokens a pass at which asking would be as fast as not asking."""
        return self.without.stats.acceptance_length * self.asked.step_s / self.without.step_s


@dataclass(frozen=True, slots=True)
class Point:
    """Up to num_nodes drafted nodes a step: our trees, the best trees of our candidates, and the answer itself.

    speculated: what the package's speculator adds; None where that is not asked for.
    """

    num_nodes: int
    ours: Reach
    best: Reach
    oracle: Reach
    speculated: Speculated | None = None


@dataclass(frozen=True, slots=True)
class StorePoint:
    """Our trees with one store of another size, all others as large as they were."""

    size: StoreSize
    num_bytes: int
    reach: Reach


@dataclass(frozen=True, slots=True)
class Frontier:
    """paying: our trees, each cut where a pass pays best. stores, heads: at `fastest`'s number of nodes."""

    curve: PassCurve
    points: tuple[Point, ...]
    paying: Reach
    stores: tuple[StorePoint, ...]
    heads: tuple[HeadNeed, ...]

    @property
    def is_speculated(self) -> bool:
        """Whether the package's speculator was asked, too."""
        return any(point.speculated is not None for point in self.points)

    @property
    def fastest(self) -> Point:
        """The number of nodes at which ours are fastest."""
        return max(self.points, key=lambda point: point.ours.tokens_per_s)

    @property
    def tokens_per_s(self) -> float:
        """The most that ours reach."""
        return max(self.paying.tokens_per_s, self.fastest.ours.tokens_per_s)

    @property
    def plain_tokens_per_s(self) -> float:
        return 1 / self.curve.plain_s
