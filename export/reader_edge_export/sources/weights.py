"""Reads a source's weights one at a time, by the names of its parameters, and its matrices as a graph has them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from reader_edge_export.blocks.block_type import BlockType
from reader_edge_export.blocks.blocks import Blocks
from reader_edge_runtime.arrays import Float32Array

Shapes = Mapping[str, tuple[int, ...]]
_PART_NUMBERS = 1 << 24


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


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as a graph has it. name: of its parameter. shape: (K, J) where rows (..., K) are multiplied by it.

    is_transposed: whether the module has it the other way, outputs first. is_sensitive: whether it is small, and a
    rounding error in it would do much harm, as where it chooses experts.
    """

    name: str
    shape: tuple[int, int]
    is_transposed: bool
    weights: Weights
    is_sensitive: bool = False

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def transposed(self) -> "Matrix":
        """The same, transposed."""
        return Matrix(self.name, self.shape[::-1], not self.is_transposed, self.weights, self.is_sensitive)

    @property
    def block_type(self) -> BlockType | None:
        """The type that the source stores it in, if it can stay in it."""
        return self.weights.block_type(self.name)

    def read(self) -> Float32Array:
        """Its values, float32 in its shape. Raises ExportError."""
        values = self.weights.read(self.name)
        return values.T if self.is_transposed else values

    def row_parts(self) -> Iterator[Float32Array]:
        """Its values, some rows after others, of a matrix that is not transposed. Raises ExportError."""
        assert not self.is_transposed
        num_rows = max(1, _PART_NUMBERS // self.shape[1])
        for start in range(0, self.shape[0], num_rows):
            yield self.weights.read_rows(self.name, start, min(start + num_rows, self.shape[0]))

    def blocks(self) -> Blocks:
        """Its blocks (J, K), outputs first. Raises ExportError."""
        return self.weights.blocks(self.name)


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """The matrices of a layer's experts, read one at a time. name: of their parameter. shape: (X, J, K), outputs first.

    is_transposed: whether the module has them the other way, inputs first. is_sensitive: as of `Matrix`.
    """

    name: str
    shape: tuple[int, int, int]
    is_transposed: bool
    weights: Weights
    is_sensitive: bool = False

    @property
    def size(self) -> int:
        """Numbers of all experts."""
        num_experts, num_outputs, num_inputs = self.shape
        return num_experts * num_outputs * num_inputs

    @property
    def block_type(self) -> BlockType | None:
        """The type that the source stores all of them in, if they can stay in it."""
        return self.weights.block_type(self.name)

    def read(self, expert: int) -> Float32Array:
        """An expert's matrix (J, K), float32. Raises ExportError."""
        values = self.weights.read_expert(self.name, expert)
        return values.T if self.is_transposed else values

    def blocks(self, expert: int) -> Blocks:
        """An expert's blocks (J, K). Raises ExportError."""
        return self.weights.expert_blocks(self.name, expert)


class ExpertsTensor(ir.LazyTensor):
    """An initializer (X, J, K) whose values are read from the source, best by `parts`."""

    def __init__(self, matrices: ExpertMatrices) -> None:
        super().__init__(self._values, ir.DataType.FLOAT, ir.Shape(matrices.shape), name=matrices.name)
        self.matrices = matrices

    def parts(self) -> Iterator[Float32Array]:
        """Each expert's matrix (J, K)."""
        return map(self.matrices.read, range(self.matrices.shape[0]))

    def _values(self) -> ir.TensorProtocol:
        return ir.Tensor(np.stack(list(self.parts())))


def experts_of(value: ir.Value | None) -> ExpertMatrices | None:
    """The source's matrices of experts behind an initializer; None for anything else."""
    tensor = None if value is None else value.const_value
    return tensor.matrices if isinstance(tensor, ExpertsTensor) else None


class MatrixTensor(ir.LazyTensor):
    """An initializer whose values are read from the source whenever they are needed."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__(self._values, ir.DataType.FLOAT, ir.Shape(matrix.shape), name=matrix.name)
        self.matrix = matrix

    def _values(self) -> ir.TensorProtocol:
        return ir.Tensor(np.ascontiguousarray(self.matrix.read()))


def matrix_of(value: ir.Value | None) -> Matrix | None:
    """The source's matrix behind an initializer; None for anything else."""
    tensor = None if value is None else value.const_value
    return tensor.matrix if isinstance(tensor, MatrixTensor) else None


def read_side_by_side(parts: Sequence[Matrix]) -> Float32Array:
    """Matrices (K, J) of the same rows as one, (K, sum of J); in memory, the inputs of an output are neighbours."""
    if len(parts) == 1:
        return parts[0].read()
    joined = np.empty((sum(part.shape[1] for part in parts), parts[0].shape[0]), np.float32)
    start = 0
    for part in parts:
        stop = start + part.shape[1]
        joined[start:stop] = part.read().T
        start = stop
    return joined.T
