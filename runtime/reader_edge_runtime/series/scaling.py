"""How values of a series are scaled for a model: by mean and deviation of what is known, then compressed far out.

Frozen where the known part ends, so that coming patches change nothing behind them.
"""

from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Float64Array


@dataclass(frozen=True, slots=True)
class Scaling:
    mean: float
    deviation: float

    @classmethod
    def of(cls, known: Float64Array) -> "Scaling":
        """By the known values (n,); those that are all alike have a deviation of 1."""
        deviation = float(known.std())
        return cls(float(known.mean()), deviation if deviation > 0 else 1.0)

    def scaled(self, values: Float64Array) -> Float64Array:
        return np.arcsinh((values - self.mean) / self.deviation)

    def unscaled(self, scaled: Float64Array) -> Float64Array:
        return np.sinh(scaled) * self.deviation + self.mean
