"""What a judge of lossy tokens is measured by."""

import numpy as np
import pytest

from benchmarks.lossy.judge import FOLDS, auc, fitted, folds_of, held_out_scores
from reader_edge.lossy.tasks import tasks


def test_every_fold_has_tasks_of_every_kind() -> None:
    every = tasks(100)
    folds = folds_of(np.arange(100.0))
    kinds = [{task.kind for task, own in zip(every, folds, strict=True) if own == fold} for fold in range(FOLDS)]
    assert all(len(each) == 5 for each in kinds)


def test_the_area_under_the_curve_counts_pairs_in_order_and_ties_half() -> None:
    assert auc(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.0, 1.0, 1.0])) == 1.0
    assert auc(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0.0
    assert auc(np.zeros(4), np.array([0.0, 1.0, 0.0, 1.0])) == 0.5


def test_a_figure_that_tells_is_found_and_one_that_does_not_is_none() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((600, 2))
    y = (x[:, 0] + 0.5 * random.standard_normal(600) > 0).astype(np.float64)
    questions = np.arange(600.0)
    assert auc(held_out_scores(x, y, questions, 1.0), y) > 0.9
    assert auc(held_out_scores(x[:, 1:], y, questions, 1.0), y) == pytest.approx(0.5, abs=0.1)
    assert np.abs(fitted(x, y, 1e9)[1:]).max() < 1e-3
