"""What a judge is measured by: held-out questions and kinds, beside the gap alone."""

import math

import numpy as np
import pytest

from reader_edge.lossy.judge_report import verdict
from reader_edge.lossy.judge_trial import tried
from reader_edge.lossy.mining import Mined
from reader_edge.lossy.regression import area, fitted, scores
from reader_edge_runtime.errors import JudgeError


def test_the_area_under_the_curve_counts_pairs_in_order_and_ties_half() -> None:
    assert area(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.0, 1.0, 1.0])) == 1.0
    assert area(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0.0
    assert area(np.zeros(4), np.array([0.0, 1.0, 0.0, 1.0])) == 0.5
    assert area(np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])) == 0.75
    assert math.isnan(area(np.zeros(2), np.ones(2)))


def test_weights_are_of_figures_as_they_are() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((4000, 2)) * (10.0, 1.0) + (5.0, 0.0)
    y = (random.random(4000) < 1 / (1 + np.exp(-(0.2 * x[:, 0] - 1)))).astype(np.float64)
    weights = fitted(x, y, 1.0)
    assert weights == pytest.approx([-1, 0.2, 0], abs=0.12)
    assert scores(weights, x[:1]) == pytest.approx(weights[0] + x[:1] @ weights[1:])
    assert np.abs(fitted(x, y, 1e9)[1:]).max() < 1e-3


def mismatches(knows: bool, num: int = 400) -> list[Mined]:
    """Of two kinds where a second figure tells whether a token matters, or nothing does, and of one where all do."""
    random = np.random.default_rng(1)
    found = []
    for number in range(num):
        matters, kind = bool(random.random() < 0.5), ("copy", "json", "edit")[number % 3]
        told = matters if knows else random.random() < 0.5
        figures = np.array([random.random(), told + 0.3 * random.standard_normal()])
        found.append(Mined(number // 3, kind, figures, matters or kind == "edit"))
    return found


def test_a_judge_that_knows_more_than_the_gap_is_ahead_on_what_it_has_not_seen() -> None:
    trial = tried(mismatches(knows=True))
    assert trial.beats_the_gap
    assert trial.lead == 1.0
    assert trial.questions.judge > trial.questions.gap + 0.2
    assert trial.kinds["json"].held_out.judge > 0.9
    assert math.isnan(trial.kinds["edit"].held_out.judge)
    assert trial.unseen_kinds.judge > 0.9
    assert (trial.num, trial.num_matter) == (400, sum(kind.num_matter for kind in trial.kinds.values()))
    let = trial.lets[-1]
    assert 0.05 < let.share < 0.6
    assert let.judge < let.gap
    told = verdict(trial)
    assert "ranks tokens better than the gap alone" in told
    assert "it is better, too: 0.9" in told


def test_a_judge_that_knows_nothing_is_not_ahead() -> None:
    trial = tried([each for each in mismatches(knows=False) if each.kind != "edit"])
    assert not trial.beats_the_gap
    assert "no better than the gap alone" in verdict(trial)


def test_of_one_kind_nothing_is_told_of_others() -> None:
    trial = tried([each for each in mismatches(knows=True) if each.kind == "json"])
    assert trial.beats_the_gap
    assert math.isnan(trial.kinds["json"].held_out.judge)
    assert "nothing can be told" in verdict(trial)


def test_where_all_tokens_matter_there_is_nothing_to_learn() -> None:
    with pytest.raises(JudgeError, match=r"20 of 20 tokens change the final answer.*: give more --tasks"):
        tried([Mined(n, "copy", np.zeros(2), True) for n in range(20)])
    with pytest.raises(JudgeError, match="0 of 0"):
        tried([])
