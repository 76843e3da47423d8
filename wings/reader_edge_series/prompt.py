"""A series' past as the forecasting model reads it: scaled by mean and deviation, extreme values compressed."""

from dataclasses import dataclass

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Float64Array
from reader_edge_series.series_manifest import PatchSizes

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


_BEYOND = 2.0  # on the scaled axis, beyond what the prompt holds: in values, at most nine times as far


@dataclass(frozen=True, slots=True)
class Prompt:
    """past: all that is known, scaled, float64 (n,). patches: its last ones, float32 (N, P). num_paths: that follow."""

    scaling: Scaling
    past: Float64Array
    patches: Float32Array
    num_paths: int

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest value of its paths, scaled."""
        return float(self.patches.min()) - _BEYOND, float(self.patches.max()) + _BEYOND

    @classmethod
    def of(cls, values: Float64Array, sizes: PatchSizes, num_paths: int) -> "Prompt":
        """values: finite, of at least `min_prompt` patches and not all alike."""
        num_patches = min(len(values) // sizes.patch_size, sizes.max_prompt)
        last = values[len(values) - num_patches * sizes.patch_size :]
        scaling = Scaling.of(last)
        patches = scaling.scaled(last).reshape(num_patches, sizes.patch_size).astype("float32")
        return cls(scaling, scaling.scaled(values), patches, num_paths)
