"""Where the next gain lies, computed from a frontier: better evidence, a cheaper pass, or more memory."""

from dataclasses import dataclass
from itertools import pairwise

from reader_edge.bench.frontier.frontier import Frontier, StorePoint


@dataclass(frozen=True, slots=True)
class Gain:
    """times: as many tokens a second as ours, at most. means: what would have to be so."""

    name: str
    means: str
    times: float


def next_gains(frontier: Frontier) -> list[Gain]:
    """What each direction would bring at most, the largest first."""
    ours, points = frontier.tokens_per_s, frontier.points
    best = max(point.best.tokens_per_s for point in points)
    flat = max(point.ours.tokens_per_s_at(frontier.curve.plain_s) for point in points)
    gains = [
        Gain("better evidence", "only right ones of our own candidates", best / ours),
        Gain("a cheaper pass", "passes that take no longer than one node's", flat / ours),
        Gain("more memory", "what the last doubling of a store brought, once more", _last_doubling(frontier.stores)),
    ]
    return sorted(gains, key=lambda gain: gain.times, reverse=True)


def next_gain_sentence(frontier: Frontier) -> str:
    """The answer in one sentence, with what each direction would bring."""
    first, *others = next_gains(frontier)
    oracle = max(point.oracle.tokens_per_s for point in frontier.points) / frontier.tokens_per_s
    if first.times <= 1:
        return f"Nothing measured here would bring more, though who knows the answer is {oracle:.2f} times as fast."
    compared = "; ".join(f"{gain.name} {gain.times:.2f} ({gain.means})" for gain in others)
    return (
        f"The next gain lies in {first.name}: at most {first.times:.2f} times our tokens/s ({first.means}); "
        f"{compared}; who knows the answer reaches {oracle:.2f}."
    )


def _last_doubling(stores: tuple[StorePoint, ...]) -> float:
    """The most that the largest size of a store brought above half of it; 1 where no store was tried at both."""
    return max(
        (
            larger.reach.tokens_per_s / smaller.reach.tokens_per_s
            for smaller, larger in pairwise(stores)
            if smaller.size.store == larger.size.store
            and smaller.size.amount == larger.size.amount // 2 > 0
            and larger.size.amount == max(each.size.amount for each in stores if each.size.store == larger.size.store)
        ),
        default=1.0,
    )
