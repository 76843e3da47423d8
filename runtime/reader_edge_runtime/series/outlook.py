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
    """Of B patches, independent values: means and standard deviations, float64 (B, P)."""

    mean: Float64Array
    scale: Float64Array

    def drawn(self, noise: Float64Array) -> Float64Array:
        """The patches (B, P) of standard normal noise (B, P)."""
        return self.mean + self.scale * noise

    def where(self, rows: Any) -> "Gaussian":
        """Of these rows alone, by any index of numpy."""
        return Gaussian(self.mean[rows], self.scale[rows])


class Outlook:
    """Of B nodes. parameters: float32 (B, G * P), as a graph gives them. num_patches: F."""

    def __init__(self, parameters: Float32Array, num_patches: int) -> None:
        groups = parameters.astype(np.float64).reshape(len(parameters), num_parameters(num_patches), -1)
        self.num_patches = num_patches
        self._means, scales, self._gains = np.split(groups, (num_patches, 2 * num_patches), axis=1)
        self._scales = np.exp(np.clip(scales, MIN_LOG_SCALE, MAX_LOG_SCALE))

    @property
    def binding(self) -> Gaussian:
        """How the next patch is distributed."""
        return Gaussian(self._means[:, 0], self._scales[:, 0])

    def further(self, number: int, before: Float64Array) -> Gaussian:
        """How coming patch `number`, from 1 on, is drafted, given the one before it (B, P)."""
        strayed = before - self._means[:, number - 1]
        last, average = self._gains[:, 2 * number - 2], self._gains[:, 2 * number - 1]
        mean = self._means[:, number] + last * strayed[:, -1:] + average * strayed.mean(1, keepdims=True)
        return Gaussian(mean, self._scales[:, number])
