"""What a forecast found: sample paths of each series, and what can be read from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.series.path_sampler import ForecastStats


@dataclass(frozen=True, slots=True)
class Forecast:
    """names: of S series. paths: float64 (S, num_paths, horizon), in the units of the series."""

    names: Sequence[str]
    paths: Float64Array
    stats: ForecastStats

    def mean(self) -> Float64Array:
        """(S, horizon), over the paths."""
        mean: Float64Array = self.paths.mean(1)
        return mean

    def quantiles(self, levels: Sequence[float]) -> Float64Array:
        """(S, len(levels), horizon). Raises ConfigError for a level that is not between 0 and 1."""
        for level in levels:
            if not 0 <= level <= 1:
                raise ConfigError(f"A quantile is {level!r:.80}, but must be from 0 to 1.")
        found: Float64Array = np.moveaxis(np.quantile(self.paths, levels, axis=1), 0, 1)
        return found
