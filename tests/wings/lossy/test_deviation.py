"""The meter of lossy answers."""

import numpy as np
import pytest

from reader_edge_lossy.deviation import DeviationMeter, repeated_share
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers


def test_the_share_of_repeated_runs_of_four_tokens_is_that_of_distinct_ones_missing() -> None:
    assert repeated_share([1, 2, 3]) == 0
    assert repeated_share([1, 2, 3, 4, 5]) == 0
    assert repeated_share([7] * 11) == pytest.approx(1 - 1 / 8)


def test_the_usual_share_is_of_the_models_own_answers_as_long_as_this_one() -> None:
    own = OwnAnswers([np.array([1, 2, 3, 4, 5, 6, 7, 8] * 2, np.int32), np.arange(16, dtype=np.int32)])
    meter = DeviationMeter("some rule", {"gap": 1.0}, own)
    assert meter.report(range(8))["usual_repeated_4grams"] == 0
    assert meter.report(range(16))["usual_repeated_4grams"] == pytest.approx(5 / 13 / 2)
    assert DeviationMeter("some rule", {}).report([1])["usual_repeated_4grams"] is None


def test_changes_are_counted_and_shared_among_all_tokens() -> None:
    meter = DeviationMeter("some rule", {"gap": 1.0})
    meter.change(0.5)
    meter.change(0.25)
    report = meter.report(range(10))
    assert (report["num_changed"], report["nats_per_token"], report["num_tokens"]) == (2, 0.075, 10)
    assert meter.report([])["nats_per_token"] == 0
    assert report["figures"] == {"gap": 1.0}
