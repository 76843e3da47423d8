"""Rollouts of means: with no tolerance the model's own, else drafts near it, and what they changed is told."""

import numpy as np
import pytest

from reader_edge.series.bundled import bundled_forecaster
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.lossy.mean_forecaster import MeanForecaster, MeanTolerance
from reader_edge_runtime.series.outlook import Gaussian

FRAME = {
    "waves": np.sin(np.arange(600) / 4),
    "noise": np.sin(np.arange(700) / 4) + 0.3 * np.random.default_rng(0).standard_normal(700),
}


def test_without_tolerance_drafts_change_nothing() -> None:
    forecaster = MeanForecaster.load(bundled_forecaster(), threads=1, tolerance=0)
    plain = forecaster.rolled_out(FRAME, 100, drafts="none")
    drafted = forecaster.rolled_out(FRAME, 100, drafts="own")
    assert plain.forecast.stats.num_drafted == 0 < drafted.forecast.stats.num_drafted
    assert plain.forecast.paths.shape == (2, 1, 100)
    np.testing.assert_allclose(drafted.forecast.paths, plain.forecast.paths, atol=1e-4)
    assert drafted.num_strayed == 0 == drafted.most_strayed == drafted.mean_strayed


def test_a_tolerance_saves_passes_and_tells_how_far_off_drafts_are() -> None:
    loose = MeanForecaster.load(bundled_forecaster(), threads=1, tolerance=50).rolled_out(FRAME, 160, drafts="own")
    assert loose.forecast.stats.num_passes < 2 * (160 // 8 - 1)
    assert loose.num_strayed == loose.forecast.stats.num_accepted > 0
    assert 0 < loose.mean_strayed <= loose.most_strayed <= 50


def test_a_draft_counts_within_the_tolerance_and_strays_only_behind_those_that_count() -> None:
    coupling, random = MeanTolerance(0.5), np.random.default_rng(0)
    bound = Gaussian(np.zeros((1, 4, 2)), np.full((1, 4, 2), 2.0))
    patches = np.array([[[0.8, 0.8], [0.0, 0.0], [3.0, 0.0], [0.2, 0.2]]])
    assert coupling.accepted(bound, bound, patches, random).tolist() == [[True, True, False, True]]
    assert coupling.strayed == pytest.approx([0.4])
    assert (coupling.replaced(bound.where((0, [2])), bound, patches[0, 2:3], random) == 0).all()


@pytest.mark.parametrize("tolerance", [-1.0, float("nan"), float("inf")])
def test_a_tolerance_that_is_none_is_refused(tolerance: float) -> None:
    with pytest.raises(ConfigError, match="must be 0 or more"):
        MeanForecaster.load(bundled_forecaster(), tolerance=tolerance)
