"""The weights of a model by the names of its parameters: read one at a time, never held."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from reader_edge_export.blocks.block_type import BlockType
from reader_edge_export.blocks.blocks import Blocks
from reader_edge_runtime.arrays import Float32Array

Shapes = Mapping[str, tuple[int, ...]]


class Weights(ABC):
    """Of a source whose tensors were compared with the model's parameters: each has its place and its shape."""

    @abstractmethod
    def read(self, name: str) -> Float32Array:
        """A parameter in fp32, in the shape that its module has. Raises ExportError, also for values not finite."""

    def read_rows(self, name: str, start: int, stop: int) -> Float32Array:
        """Rows of a matrix, likewise, without the others."""
        return self.read(name)[start:stop]

    def rows(self, name: str, indices: npt.NDArray[np.int64]) -> Float32Array:
        """Rows of a matrix by their indices (...), in fp32: (..., E)."""
        found, places = np.unique(indices, return_inverse=True)
        if len(found) == 0:
            return self.read_rows(name, 0, 0)
        rows = np.concatenate([self.read_rows(name, int(row), int(row) + 1) for row in found])
        return rows[places.reshape(indices.shape)]

    def read_expert(self, name: str, expert: int) -> Float32Array:
        """One expert's part of a parameter (X, ...), as `read` has it."""
        part: Float32Array = self.read(name)[expert]
        return part

    def stored_type(self, name: str) -> str:
        """What the source calls the type that it stores a parameter in, "A and B" where its parts differ."""
        raise AssertionError(f"the type of {name} is not known")

    def block_type(self, name: str) -> BlockType | None:
        """The type that a matrix, or those of experts, can stay in as the source stores it; None where it cannot."""
        return None

    def blocks(self, name: str) -> Blocks:
        """A matrix (J, K), outputs first, as the source stores it. Only where `block_type` names a type."""
        raise AssertionError(f"{name} is not stored in blocks")

    def expert_blocks(self, name: str, expert: int) -> Blocks:
        """One expert's matrix (J, K) of a parameter (X, ...), likewise."""
        raise AssertionError(f"{name} is not stored in blocks")
