"""Whether two samples can be of one law: moments within four standard errors, projections by Kolmogorov and Smirnov."""

import numpy as np

from reader_edge_runtime.arrays import Float64Array

_STANDARD_ERRORS = 4.0
_LEVEL = 0.01
_NUM_PROJECTIONS = 32


def same_law(one: Float64Array, other: Float64Array) -> bool:
    """Of samples (n, d) and (m, d)."""
    return _has_same_moments(one, other) and _has_same_projections(one, other)


def _has_same_moments(one: Float64Array, other: Float64Array) -> bool:
    center = other.mean(0)

    def moments(sample: Float64Array) -> Float64Array:
        apart = sample - center
        rows, columns = np.triu_indices(sample.shape[1])
        return np.concatenate([apart, apart[:, rows] * apart[:, columns]], axis=1)

    first, second = moments(one), moments(other)
    error = np.sqrt(first.var(0) / len(first) + second.var(0) / len(second))
    return bool((np.abs(first.mean(0) - second.mean(0)) <= _STANDARD_ERRORS * error).all())


def _has_same_projections(one: Float64Array, other: Float64Array) -> bool:
    random = np.random.default_rng(0)
    smallest = 1.0
    for _ in range(_NUM_PROJECTIONS):
        axis = random.standard_normal(one.shape[1])
        first, second = np.sort(one @ axis), np.sort(other @ axis)
        places = np.concatenate([first, second])
        shares = (np.searchsorted(each, places, side="right") / len(each) for each in (first, second))
        gap = np.abs(np.subtract(*shares)).max()
        weight = len(first) * len(second) / (len(first) + len(second))
        smallest = min(smallest, 2 * np.exp(-2 * weight * gap**2))
    return bool(smallest * _NUM_PROJECTIONS > _LEVEL)
