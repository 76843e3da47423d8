"""The weights of a speculator: its own, and those of the target where it has none."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from reader_edge_export.sources.weights import Weights
from reader_edge_runtime.arrays import Float32Array


class SpeculatorWeights(Weights):
    """own: by the names of the module's parameters. lent: names of those that are the target's -> its names."""

    def __init__(self, own: Weights, target: Weights, lent: Mapping[str, str]) -> None:
        self._own = own
        self._target = target
        self.lent = lent

    def read(self, name: str) -> Float32Array:
        return self._source(name).read(self._name(name))

    def read_rows(self, name: str, start: int, stop: int) -> Float32Array:
        return self._source(name).read_rows(self._name(name), start, stop)

    def rows(self, name: str, indices: npt.NDArray[np.int64]) -> Float32Array:
        return self._source(name).rows(self._name(name), indices)

    def read_expert(self, name: str, expert: int) -> Float32Array:
        return self._own.read_expert(name, expert)

    def _source(self, name: str) -> Weights:
        return self._target if name in self.lent else self._own

    def _name(self, name: str) -> str:
        return self.lent.get(name, name)
