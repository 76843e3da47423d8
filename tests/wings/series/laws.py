"""Whether two samples can be of one law: moments within standard errors, projections by Kolmogorov and Smirnov."""

from statistics import NormalDist

import numpy as np

from reader_edge_runtime.arrays import Float64Array

_STANDARD_ERRORS = 4.0
_LEVEL = 0.01
_NUM_PROJECTIONS = 32


def same_law(one: Float64Array, other: Float64Array) -> bool:
    """Of samples (n, d) and (m, d)."""
    gaps = moment_gaps(one, other)
    return bool((np.abs(gaps) <= most_errors(len(gaps))).all()) and projections_level(one, other) > _LEVEL


def most_errors(num_moments: int) -> float:
    """How many standard errors each of so many moments may be off: four, and more where they are many.

    Of 560 moments, those of 32 values, one lies beyond four in 28 tries by chance alone; Bonferroni's bound of 4.3
    leaves one in a hundred.
    """
    return max(_STANDARD_ERRORS, NormalDist().inv_cdf(1 - _LEVEL / 2 / num_moments))


def moment_gaps(one: Float64Array, other: Float64Array) -> Float64Array:
    """How many standard errors the d means and d (d + 1) / 2 covariances are apart."""
    center = other.mean(0)

    def moments(sample: Float64Array) -> Float64Array:
        apart = sample - center
        rows, columns = np.triu_indices(sample.shape[1])
        return np.concatenate([apart, apart[:, rows] * apart[:, columns]], axis=1)

    first, second = moments(one), moments(other)
    error = np.sqrt(first.var(0) / len(first) + second.var(0) / len(second))
    gaps: Float64Array = (first.mean(0) - second.mean(0)) / error
    return gaps


def projections_level(one: Float64Array, other: Float64Array) -> float:
    """How likely gaps like those of 32 projections are by chance alone, times their number (Bonferroni)."""
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
    return float(min(1.0, smallest * _NUM_PROJECTIONS))
