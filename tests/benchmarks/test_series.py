"""Windows lie in what is held out, scores are those of their definitions, and a deepened model says the same."""

import math

import numpy as np
import pytest
import torch

from benchmarks.series.deepened import deepened
from benchmarks.series.drafted import compared
from benchmarks.series.exactness import PublishedRule, acceptance
from benchmarks.series.held_out import LEVELS, quantile_loss, ranked_score, seasonal, windows
from benchmarks.series.overlaps import Watched, most_that_count
from benchmarks.series.saved import drawn
from benchmarks.series.skill import errors, of_points
from benchmarks.series.speed import LEARNING_ROUNDS, interleaved
from reader_edge.series.bundled import bundled_forecaster
from reader_edge_runtime.series.coupling import replaced
from reader_edge_runtime.series.forecaster import Forecaster
from reader_edge_runtime.series.outlook import Gaussian
from tests.export.series.tiny_forecaster import tiny_modules


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


def test_every_source_has_its_turn_and_learning_rounds_do_not_count() -> None:
    asked = []

    def forecast(source: str, number: int) -> tuple[float, int, int, int]:
        asked.append((number, source))
        return float(number), 4, 2, 1

    found = interleaved(forecast, ["a", "b"], 3)
    assert asked[:4] == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]
    assert found["a"].seconds == [LEARNING_ROUNDS, LEARNING_ROUNDS + 1, LEARNING_ROUNDS + 2]
    assert (found["a"].share, found["a"].drafted, found["a"].passes) == (0.5, 12, 3)


def test_layers_that_add_nothing_change_nothing() -> None:
    module = tiny_modules()[0]
    patches = torch.randn(2, 30, 8)
    with torch.no_grad():
        assert torch.equal(deepened(module, 5).said(patches), module.said(patches))


def test_what_can_count_of_one_draft_and_of_two_is_known_for_one_value() -> None:
    """Sets that matter are {x > c}: of two drafts the least of 2 - p(x > c) - q(x < c) ** 2 over c."""
    bound, draft = (Gaussian(np.array([mean]), np.ones(1)) for mean in (1.0, 0.0))
    random = np.random.default_rng(0)
    one, two = np.mean([most_that_count(bound, draft, random) for _ in range(50)], axis=0)
    assert one == pytest.approx(math.erfc(0.5 / math.sqrt(2)), abs=0.01)
    below = [[0.5 * math.erfc((mean - c) / math.sqrt(2)) for mean in (1.0, 0.0)] for c in np.linspace(-4, 4, 801)]
    assert two == pytest.approx(min(1 + p - q**2 for p, q in below), abs=0.01)
    assert one < two < 1
    assert most_that_count(bound, bound, random) == (1, 1)


def test_what_counts_is_told_beside_the_overlap() -> None:
    random, watched = np.random.default_rng(0), Watched()
    assert acceptance(watched, random) == "- | -"
    bound, draft = (Gaussian(np.full((400, 2, 1), mean), np.ones((400, 2, 1))) for mean in (0.0, 1e3))
    for law in (bound, draft):
        watched.accepted(bound, law, watched.drawn(law, random), random)
    assert acceptance(watched, random) == "50.0% | +0.0% ± 0.0%"


def test_the_published_rule_draws_again_from_the_model() -> None:
    bound, draft = (Gaussian(np.full((9, 2), mean), np.full((9, 2), mean + 1.0)) for mean in (0.0, 3.0))
    drafts = np.full((9, 2), 3.0)
    found = PublishedRule().replaced(bound, draft, drafts, np.random.default_rng(5))
    np.testing.assert_array_equal(found, np.random.default_rng(5).standard_normal((9, 2)))
    assert not np.array_equal(found, replaced(bound, draft, drafts, np.random.default_rng(5)))


def test_passes_are_added_up_and_drafts_are_made_in_every_step() -> None:
    forecaster = Forecaster.load(bundled_forecaster(), threads=1)
    pasts = [np.sin(np.arange(400) / 4), np.cos(np.arange(500) / 9)]
    plain, own = (drawn(forecaster, pasts, 80, source) for source in ("none", "own"))
    assert (plain.num_passes, plain.num_drafted) == (18, 0)
    assert own.num_passes + own.num_accepted == pytest.approx(18, abs=2)
    assert own.num_drafted >= own.num_passes
