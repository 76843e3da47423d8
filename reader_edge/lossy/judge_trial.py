"""Whether a judge knows better than the gap alone which tokens matter, on questions and kinds that it has not seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reader_edge.lossy.mining import Mined
from reader_edge.lossy.regression import area, fitted, scores
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.errors import JudgeError

FOLDS = 5
THRESHOLDS = (0.05, 0.1, 0.2, 0.4)
_SURE = 0.95
_RESAMPLES = 500

Groups = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Areas:
    """Under the curve, of the gap alone and of a judge."""

    gap: float
    judge: float


@dataclass(frozen=True, slots=True)
class KindTrial:
    """Of one kind of task. held_out: by a judge that has seen no task of it.

    NaN where there is no other kind, and where all of its tokens matter, or none.
    """

    num: int
    num_matter: int
    held_out: Areas


@dataclass(frozen=True, slots=True)
class Let:
    """What a threshold lets through on questions that the judge has not seen.

    share: of all tokens. judge, gap: of what it, and a gap that lets as many through, let through, the share that
    matters.
    """

    threshold: float
    share: float
    judge: float
    gap: float


@dataclass(frozen=True, slots=True)
class JudgeTrial:
    """weights: of a judge of all tokens. questions: areas on held-out ones. lead: in how many of the resampled sets
    of questions the judge is ahead of the gap. kinds: by name. lets: by threshold.
    """

    weights: Float64Array
    num: int
    num_matter: int
    questions: Areas
    lead: float
    kinds: dict[str, KindTrial]
    lets: tuple[Let, ...]

    @property
    def beats_the_gap(self) -> bool:
        return self.lead >= _SURE

    @property
    def unseen_kinds(self) -> Areas:
        """Mean over the kinds that have one; NaN without any."""
        held_out = [each.held_out for each in self.kinds.values() if not math.isnan(each.held_out.judge)]
        if not held_out:
            return Areas(math.nan, math.nan)
        return Areas(*(float(np.mean([getattr(each, who) for each in held_out])) for who in ("gap", "judge")))


def tried(found: Sequence[Mined]) -> JudgeTrial:
    """Train a judge and compare it. Raises JudgeError where there is nothing to tell apart."""
    x, y = np.array([each.figures for each in found]), np.array([float(each.matters) for each in found])
    questions = np.array([each.question for each in found])
    if y.sum() < FOLDS or (1 - y).sum() < FOLDS:
        raise JudgeError(
            f"{int(y.sum())} of {len(y)} tokens change the final answer, which tells nothing about the others: "
            "give more --tasks, or a model that can do them."
        )
    gap = x[:, 0]
    said = _held_out(x, y, np.unique(questions, return_inverse=True)[1] % FOLDS)
    kinds = np.array([each.kind for each in found])
    unseen = _held_out(x, y, np.unique(kinds, return_inverse=True)[1])
    return JudgeTrial(
        fitted(x, y),
        len(y),
        int(y.sum()),
        Areas(area(gap, y), area(said, y)),
        _lead(said, gap, y, questions),
        {
            str(kind): KindTrial(len(own), int(own.sum()), Areas(area(gap[rows], own), area(unseen[rows], own)))
            for kind in np.unique(kinds)
            for rows in [kinds == kind]
            for own in [y[rows]]
        },
        tuple(_let(threshold, said, gap, y) for threshold in THRESHOLDS),
    )


def _held_out(x: Float64Array, y: Float64Array, groups: Groups) -> Float64Array:
    """What a judge says of each token that has not seen its group, (n,): log-odds, NaN of one group."""
    said = np.zeros(len(y))
    for group in np.unique(groups):
        held = groups == group
        said[held] = scores(fitted(x[~held], y[~held]), x[held]) if not held.all() else math.nan
    return said


def _lead(said: Float64Array, gap: Float64Array, y: Float64Array, questions: Groups) -> float:
    """The share of resamples of the questions in which the judge has the larger area."""
    random = np.random.default_rng(0)
    rows = [np.flatnonzero(questions == question) for question in np.unique(questions)]
    num_ahead = 0
    for _ in range(_RESAMPLES):
        drawn = np.concatenate([rows[number] for number in random.integers(len(rows), size=len(rows))])
        num_ahead += area(said[drawn], y[drawn]) > area(gap[drawn], y[drawn])
    return num_ahead / _RESAMPLES


def _let(threshold: float, said: Float64Array, gap: Float64Array, y: Float64Array) -> Let:
    is_let = 1 / (1 + np.exp(-np.clip(said, -30, 30))) < threshold
    num = int(is_let.sum())
    if not num:
        return Let(threshold, 0.0, 0.0, 0.0)
    return Let(threshold, num / len(y), float(y[is_let].mean()), float(y[np.argsort(gap, kind="stable")[:num]].mean()))
