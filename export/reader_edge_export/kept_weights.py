"""The matrices of a source that stay in its own blocks, found by the matrix itself: graphs name them anew."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from reader_edge_export.block_types import Blocks, BlockType
from reader_edge_export.calibration import matrix_key
from reader_edge_runtime.errors import ExportError

Float32Array = npt.NDArray[np.float32]

_COMPARED_OUTPUTS = 4096  # at a time, in fp32 beside the matrix


@dataclass(frozen=True, slots=True)
class KeptMatrix:
    """One of them. name: in the source. read: its blocks, which nothing holds until they are stored."""

    name: str
    block_type: BlockType
    read: Callable[[], Blocks]


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """None of them unless added.

    num_kept, num_others: matrices by the name of their type, those that stay and those that cannot.
    needs_calibration: whether products are among the others.
    """

    num_kept: Mapping[str, int] = field(default_factory=dict)
    num_others: Mapping[str, int] = field(default_factory=dict)
    needs_calibration: bool = True
    _matrices: dict[bytes, list[KeptMatrix]] = field(default_factory=dict)
    _found: set[bytes] = field(default_factory=set)

    def add(self, weight: Float32Array, matrix: KeptMatrix) -> None:
        """weight: the matrix (K, J) in fp32, as a graph will have it."""
        self._matrices.setdefault(matrix_key(weight), []).append(matrix)

    def type_of(self, weight: Float32Array) -> BlockType | None:
        """The type that a graph's matrix (K, J) stays in, None for one that does not."""
        candidates = self._matrices.get(matrix_key(weight), [])
        if len({matrix.block_type.name for matrix in candidates}) > 1:  # the same edges: all zeros, as in pruned models
            candidates = [matrix for matrix in candidates if _is_same(matrix.read(), weight)]
        return candidates[0].block_type if candidates else None

    def blocks_of(self, weight: Float32Array) -> Blocks:
        """The blocks of a graph's matrix (K, J), which have its values bit for bit. Raises ExportError otherwise."""
        key = matrix_key(weight)
        candidates = self._matrices[key]
        for matrix in candidates:
            blocks = matrix.read()
            if _is_same(blocks, weight):
                self._found.add(key)
                return blocks
        raise _error(candidates[0])

    def check_all_found(self) -> None:
        """Raise ExportError where a graph has asked for less than there is."""
        for key, candidates in self._matrices.items():
            if key not in self._found:
                raise _error(candidates[0])


NOTHING_KEPT = KeptWeights()


def _is_same(blocks: Blocks, weight: Float32Array) -> bool:
    if blocks.shape != weight.shape[::-1]:
        return False
    for start in range(0, weight.shape[1], _COMPARED_OUTPUTS):
        outputs = slice(start, start + _COMPARED_OUTPUTS)
        columns = np.ascontiguousarray(weight[:, outputs].T)
        if not np.array_equal(blocks.dequantized(outputs).view(np.uint32), columns.view(np.uint32)):
            return False
    return True


def _error(matrix: KeptMatrix) -> ExportError:
    return ExportError(f"The graph's weight of {matrix.name!r:.80} is not the file's: export with --precision int8.")
