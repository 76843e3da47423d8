"""How values of a series are scaled for a model: by mean and deviation of what is known, then compressed far out.

Frozen where the known part ends, so that coming patches change nothing behind them.
"""

from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Float64Array

_LEAST = float(np.finfo(np.float64).smallest_subnormal)
_FARTHEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Scaling:
    mean: float
    deviation: float

    @classmethod
    def of(cls, known: Float64Array) -> "Scaling":
        """By the known values (n,); those that are all alike have a deviation of 1."""
        if (known == known[0]).all():
            return cls(float(known[0]), 1.0)
        exponent = np.frexp(np.abs(known).max())[1]  # squares of very small numbers would be none
        deviation = float(np.ldexp(np.ldexp(known, -exponent).std(), exponent))
        return cls(float(known.mean()), max(deviation, _LEAST))

    def scaled(self, values: Float64Array) -> Float64Array:
        with np.errstate(over="ignore"):
            apart = (values - self.mean) / self.deviation
        scaled: Float64Array = np.arcsinh(apart.clip(-_FARTHEST, _FARTHEST))
        return scaled

    def unscaled(self, scaled: Float64Array) -> Float64Array:
        return np.sinh(scaled) * self.deviation + self.mean
