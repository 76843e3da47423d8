"""What a model says behind a patch: how the patches that come next are distributed. The first of them binds.

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


class Outlook(NamedTuple):
    """Of nodes, float64. means, scales: (..., F, P). gains: (..., 2F - 2, P)."""

    means: Float64Array
    scales: Float64Array
    gains: Float64Array

    @classmethod
    def of(cls, parameters: Float32Array, num_patches: int) -> "Outlook":
        """parameters: float32 (..., G * P), as a graph gives them. num_patches: F."""
        groups = parameters.astype(np.float64).reshape(*parameters.shape[:-1], num_parameters(num_patches), -1)
        means, scales, gains = np.split(groups, (num_patches, 2 * num_patches), axis=-2)
        return cls(means, np.exp(np.clip(scales, MIN_LOG_SCALE, MAX_LOG_SCALE)), gains)

    @property
    def binding(self) -> Gaussian:
        """How the next patch is distributed."""
        return Gaussian(self.means[..., 0, :], self.scales[..., 0, :])

    def where(self, nodes: Any) -> "Outlook":
        """Of these nodes alone, by any index of numpy."""
        return Outlook(self.means[nodes], self.scales[nodes], self.gains[nodes])

    def further(self, number: int, before: Float64Array) -> Gaussian:
        """How coming patch `number`, from 1 on, is drafted, given the one before it (..., P)."""
        strayed = before - self.means[..., number - 1, :]
        last, average = self.gains[..., 2 * number - 2, :], self.gains[..., 2 * number - 1, :]
        mean = self.means[..., number, :] + last * strayed[..., -1:] + average * strayed.mean(-1, keepdims=True)
        return Gaussian(mean, self.scales[..., number, :])
