"""What a forecasting model predicts behind a patch: Gaussians of the next patches. The first of them is the forecast.

A row has G groups of P numbers, of F coming patches: F means, F logarithms of standard deviations, and F - 1 pairs of
gains. Patch k > 1 is drafted around its mean plus its gains times how far the patch before lies from its own mean: at
its last value, and on average.
"""

from typing import Any, NamedTuple

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Float64Array

MIN_LOG_SCALE, MAX_LOG_SCALE = -6.0, 3.0  # of values scaled by their series


def num_parameters(num_patches: int) -> int:
    """G, of so many coming patches."""
    return 4 * num_patches - 2


class Gaussian(NamedTuple):
    """Of patches, independent values: means and standard deviations, float64 (..., P)."""

    mean: Float64Array
    scale: Float64Array

    def drawn(self, noise: Float64Array) -> Float64Array:
        """The patches of standard normal noise, (..., P)."""
        return self.mean + self.scale * noise

    def where(self, rows: Any) -> "Gaussian":
        """Of these patches alone, by any index of numpy."""
        return Gaussian(self.mean[rows], self.scale[rows])


class PatchDistribution(NamedTuple):
    """Of nodes. groups: float32 (..., G, P). num_patches: F."""

    groups: Float32Array
    num_patches: int

    @classmethod
    def of(cls, parameters: Float32Array, num_patches: int) -> "PatchDistribution":
        """parameters: float32 (..., G * P), as a graph gives them. num_patches: F."""
        return cls(parameters.reshape(*parameters.shape[:-1], num_parameters(num_patches), -1), num_patches)

    @property
    def binding(self) -> Gaussian:
        """How the next patch is distributed."""
        return Gaussian(self.groups[..., 0, :].astype(np.float64), self.scales(0, 1)[..., 0, :])

    def where(self, nodes: Any) -> "PatchDistribution":
        """Of these nodes alone, by any index of numpy."""
        return PatchDistribution(self.groups[nodes], self.num_patches)

    def scales(self, first: int, stop: int) -> Float64Array:
        """Of coming patches from `first`, 0 the next, to before `stop`: standard deviations (..., stop - first, P)."""
        logs = self.groups[..., self.num_patches + first : self.num_patches + stop, :]
        scales: Float64Array = np.exp(np.minimum(np.maximum(logs, MIN_LOG_SCALE), MAX_LOG_SCALE), dtype=np.float64)
        return scales

    def further(self, number: int, before: Float64Array) -> Float64Array:
        """The mean of coming patch `number`, from 1 on, as it is drafted, given the one before it (..., P)."""
        groups, first_gain = self.groups, 2 * self.num_patches + 2 * number - 2
        strayed = before - groups[..., number - 1, :]
        average = np.add.reduce(strayed, -1, keepdims=True) / strayed.shape[-1]
        mean = groups[..., number, :] + groups[..., first_gain, :] * strayed[..., -1:]
        drafted: Float64Array = mean + groups[..., first_gain + 1, :] * average
        return drafted
