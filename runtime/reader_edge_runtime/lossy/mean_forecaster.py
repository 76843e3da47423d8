"""Forecasts of means alone, in which a draft near the model's mean may stand in its place."""

import math
import os
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import BoolArray, Float64Array
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.series.forecast import Forecast
from reader_edge_runtime.series.forecaster import Forecaster
from reader_edge_runtime.series.frame import Frame, series_of
from reader_edge_runtime.series.outlook import Gaussian
from reader_edge_runtime.series.path_sampler import ForecastStats


@dataclass(frozen=True, slots=True)
class StrayedForecast:
    """forecast: of one path each, and what it gave up.

    num_strayed: patches that are not the model's mean behind those before them. mean_strayed, most_strayed: how far
    those lie from it, in the model's deviations, root of the mean square over a patch.
    """

    forecast: Forecast
    num_strayed: int
    mean_strayed: float
    most_strayed: float


class MeanTolerance:
    """A `Coupling` of means: a draft counts that is within so many of the model's deviations. No law is kept."""

    work = 0.35  # nothing is drawn

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self.strayed: list[float] = []  # of drafts that counted

    def drawn(self, gaussian: Gaussian, random: np.random.Generator) -> Float64Array:
        return gaussian.mean

    def accepted(
        self, bound: Gaussian, draft: Gaussian, patches: Float64Array, random: np.random.Generator
    ) -> BoolArray:
        strayed = np.sqrt((((patches - bound.mean) / bound.scale) ** 2).mean(-1))
        counted: BoolArray = strayed <= self._tolerance
        self.strayed += strayed[counted.cumprod(1).astype(bool) & (strayed > 0)].tolist()
        return counted

    def replaced(
        self, bound: Gaussian, draft: Gaussian, patches: Float64Array, random: np.random.Generator
    ) -> Float64Array:
        return bound.mean


class MeanForecaster(Forecaster):
    """Each patch is the model's mean behind the means before it, or a draft within `tolerance` of it.

    Such a path is smoother than any that the model expects, and is not the mean of its sample paths.
    """

    @classmethod
    def load(cls, path: str | os.PathLike[str], threads: int = 0, tolerance: float = 0.5) -> "MeanForecaster":
        """tolerance: in deviations of the model, 0 for none. Raises as `Forecaster.load`."""
        if not (math.isfinite(tolerance) and tolerance >= 0):
            raise ConfigError(f"The tolerance is {tolerance!r:.80}, but must be 0 or more, in the model's deviations.")
        forecaster = super().load(path, threads)
        assert isinstance(forecaster, cls)
        forecaster._coupling = MeanTolerance(tolerance)
        return forecaster

    def rolled_out(self, frame: Frame, horizon: int, *, drafts: str = "own") -> StrayedForecast:
        """As `Forecaster.forecast`, one path of means for each series, one series after another."""
        assert isinstance(self._coupling, MeanTolerance)
        strayed = self._coupling.strayed
        strayed.clear()
        sizes, stats = self.manifest.model, ForecastStats()
        series = series_of(frame, sizes.min_prompt * sizes.patch_size)
        paths = []
        for name, values in series.items():
            found = self.forecast({name: values}, horizon, 1, drafts=drafts, seed=0)
            paths.append(found.paths)
            stats.num_passes += found.stats.num_passes
            stats.num_drafted += found.stats.num_drafted
            stats.num_accepted += found.stats.num_accepted
        mean = sum(strayed) / len(strayed) if strayed else 0.0
        forecast = Forecast(list(series), np.concatenate(paths), stats)
        return StrayedForecast(forecast, len(strayed), mean, max(strayed, default=0.0))
