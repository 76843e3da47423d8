"""Figures of one way to answer tasks, paired with those of exact answers."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from reader_edge.lossy.paired import mcnemar, wilson
from reader_edge.lossy.trial import Answered, Way


@dataclass(frozen=True, slots=True)
class KindFigures:
    """Of the tasks of one kind."""

    tasks: int
    right: int


@dataclass(frozen=True, slots=True)
class WayFigures:
    """Of all tasks.

    interval: of the share of right answers, with 95 % confidence. lost, won: answers that are right in the first way
    alone, and in this alone; p: the chance that luck alone splits them so. same: answers of the same tokens. steps:
    passes that each emitted one token that was not drafted. changed: tokens that are not the model's choice.
    seconds: of all answers of a round, the median of the rounds, and its quartiles.
    """

    way: str
    tasks: int
    right: int
    interval: tuple[float, float]
    lost: int
    won: int
    p: float
    same: int
    tokens: int
    decoded_tokens: int
    steps: int
    changed: int
    nats_per_token: float
    repeated_4grams: float
    seconds: float
    seconds_quartiles: tuple[float, float]
    kinds: dict[str, KindFigures]

    @property
    def tokens_per_step(self) -> float:
        return self.decoded_tokens / self.steps if self.steps else 0.0


def way_figures(way: Way, exact: Way) -> WayFigures:
    """Figures of a way that was tried. exact: the way that it is paired with."""
    answers, pairs = way.answers, list(zip(exact.answers, way.answers, strict=True))
    num_right = sum(each.is_right for each in answers)
    lost, won = sum(a.is_right > b.is_right for a, b in pairs), sum(a.is_right < b.is_right for a, b in pairs)
    num_tokens = sum(len(each.token_ids) for each in answers)
    rounds = [sum(seconds) for seconds in way.seconds]
    low, median, high = statistics.quantiles(rounds, n=4, method="inclusive") if len(rounds) > 1 else rounds * 3
    return WayFigures(
        way=way.name,
        tasks=len(answers),
        right=num_right,
        interval=wilson(num_right, len(answers)),
        lost=lost,
        won=won,
        p=mcnemar(lost, won),
        same=sum(a.token_ids == b.token_ids for a, b in pairs),
        tokens=num_tokens,
        decoded_tokens=sum(each.num_decoded for each in answers),
        steps=sum(each.num_steps for each in answers),
        changed=sum(each.num_changed for each in answers),
        nats_per_token=sum(each.nats for each in answers) / num_tokens,
        repeated_4grams=statistics.fmean(each.repeated for each in answers),
        seconds=median,
        seconds_quartiles=(low, high),
        kinds={kind: _kind_figures(kind, answers) for kind in dict.fromkeys(each.kind for each in answers)},
    )


def _kind_figures(kind: str, answers: Sequence[Answered]) -> KindFigures:
    of_kind = [each for each in answers if each.kind == kind]
    return KindFigures(len(of_kind), sum(each.is_right for each in of_kind))
