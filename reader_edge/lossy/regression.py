"""A logistic regression, and the area under the curve of what it says."""

import math

import numpy as np

from reader_edge_runtime.arrays import Float64Array

_PENALTY = 30.0
_STEPS = 25


def fitted(x: Float64Array, y: Float64Array, penalty: float = _PENALTY) -> Float64Array:
    """Weights of (n, F) figures as they are, the intercept first: float64 (1 + F,).

    y: (n,), 0 or 1. penalty: of squared weights, of figures that are scaled to a spread of one. By Newton's method.
    """
    mean, spread = x.mean(0), x.std(0) + 1e-9
    scaled = np.concatenate([np.ones((len(x), 1)), (x - mean) / spread], axis=1)
    ridge = penalty * np.eye(scaled.shape[1])
    ridge[0, 0] = 1e-3
    weights = np.zeros(scaled.shape[1])
    for _ in range(_STEPS):
        shares = 1 / (1 + np.exp(-np.clip(scaled @ weights, -30, 30)))
        slope = scaled.T @ (shares - y) + ridge @ weights
        weights -= np.linalg.solve(scaled.T @ (scaled * (shares * (1 - shares))[:, None]) + ridge, slope)
    weights[1:] /= spread
    weights[0] -= mean @ weights[1:]
    return weights


def scores(weights: Float64Array, x: Float64Array) -> Float64Array:
    """Log-odds of (n, F) figures, (n,)."""
    found: Float64Array = weights[0] + x @ weights[1:]
    return found


def area(said: Float64Array, y: Float64Array) -> float:
    """How often one of those that are 1 has the higher score of two; ties count half.

    NaN where all are the same, or a score is NaN.
    """
    num_ones, num = int(y.sum()), len(y)
    if num_ones in (0, num) or np.isnan(said).any():
        return math.nan
    _, inverse, counts = np.unique(said, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # of ties the middle one
    return float((ranks[inverse][y == 1].sum() - num_ones * (num_ones + 1) / 2) / (num_ones * (num - num_ones)))
