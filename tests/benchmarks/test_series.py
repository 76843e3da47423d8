"""Windows lie in what is held out, and scores are those of their definitions."""

import numpy as np
import pytest

from benchmarks.series.drafted import compared
from benchmarks.series.held_out import LEVELS, quantile_loss, ranked_score, seasonal, windows
from benchmarks.series.skill import errors, of_points


def test_windows_lie_in_the_last_fifth() -> None:
    parts = windows(np.arange(1000.0), 50, 9)
    assert len(parts) == 9
    assert parts[0].coming[0] == 800
    assert parts[-1].coming[-1] == 999
    assert all(part.known[-1] + 1 == part.coming[0] for part in parts)


def test_seasons_go_on_as_they_were_or_as_their_mean() -> None:
    known = np.array([9.0, 1, 2, 3, 4])
    assert seasonal(known, 2, 5).tolist() == [3, 4, 3, 4, 3]
    assert seasonal(known, 2, 3, num_periods=2).tolist() == [2, 3, 2]


def test_scores_of_points_are_absolute_errors_and_those_of_paths_come_near_their_integral() -> None:
    coming = np.array([1.0, -2.0])
    assert quantile_loss(np.zeros((len(LEVELS), 2)), coming) == pytest.approx([1, 2])
    draws = np.random.default_rng(0).standard_normal((20_000, 1))
    normal = 0.2337  # of a standard normal, at its mean
    assert ranked_score(draws, np.zeros(1)) == pytest.approx(normal, abs=0.01)
    assert quantile_loss(np.quantile(draws, LEVELS, axis=0), np.zeros(1)) == pytest.approx(normal, abs=0.03)


def test_errors_are_of_the_first_steps() -> None:
    parts = windows(np.zeros(100), 4, 2)
    forecasts = of_points([np.array([1.0, 3, 9, 9])] * 2)
    assert errors(forecasts, parts, 2) == pytest.approx((2.0, 5**0.5, 2.0))


def test_errors_with_drafts_are_a_share_of_those_without() -> None:
    plain = np.array([[1.0, 4.0], [3.0, 4.0]])
    more, spread = compared(plain, plain + np.array([1.0, 2.0]))
    assert more == pytest.approx([0.5, 0.5])
    assert spread == pytest.approx([0, 0])
