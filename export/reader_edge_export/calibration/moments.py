"""Second moments of a matrix's inputs, and mean squares of output gradients, over calibration texts."""

from dataclasses import dataclass

import numpy as np
import torch

from reader_edge_runtime.arrays import Float32Array

RUN_STEP = 256  # a run of inputs is a multiple of it long, but for the last
_MAX_RUN = 1024
_ROWS_ALIKE = 8  # an expert's inputs are taken for alike, as firmly as so many rows say


def run_sizes(num_inputs: int) -> list[int]:
    """Lengths of the runs that the inputs of a matrix are cut into: nearly equal, at most _MAX_RUN."""
    num_runs = -(-num_inputs // _MAX_RUN)
    size = -(-num_inputs // (num_runs * RUN_STEP)) * RUN_STEP
    return [min(size, num_inputs - begin) for begin in range(0, num_inputs, size)]


@dataclass(slots=True)
class InputMoments:
    """Second moments of a matrix's inputs (K,) over num_rows rows.

    grams: for each run of inputs (`run_sizes`), the sum of x x^T (size, size). Between runs nothing is kept, which
    bounds memory and time for wide inputs.
    """

    grams: list[Float32Array]
    num_rows: int = 0

    @classmethod
    def none(cls, num_inputs: int) -> "InputMoments":
        """Of no rows."""
        return cls([np.zeros((size, size), np.float32) for size in run_sizes(num_inputs)])

    def add(self, rows: torch.Tensor) -> None:
        """Count rows (N, K)."""
        self.num_rows += len(rows)
        for gram, run in zip(self.grams, rows.split([len(gram) for gram in self.grams], dim=1), strict=True):
            torch.from_numpy(gram).addmm_(run.T, run)

    def root_mean_squares(self) -> Float32Array:
        """The usual magnitude of each input (K,)."""
        squares = np.concatenate([gram.diagonal() for gram in self.grams])
        return np.sqrt(squares / np.float32(max(self.num_rows, 1)))


@dataclass(slots=True)
class OutputGradients:
    """squares: sums over num_rows rows of the squared gradients of a matrix's outputs (J,)."""

    squares: Float32Array
    num_rows: int = 0

    def add(self, gradients: torch.Tensor) -> None:
        """Count gradients (N, J)."""
        self.num_rows += len(gradients)
        self.squares += gradients.square().sum(dim=0).numpy()

    def mean_squares(self) -> Float32Array:
        """The mean squared gradient of each output (J,)."""
        return self.squares / np.float32(max(self.num_rows, 1))


@dataclass(slots=True)
class ExpertInputs:
    """squares: sums (X, K) of the squared inputs of each expert's matrix, over num_rows (X,) rows."""

    squares: Float32Array
    num_rows: Float32Array

    @classmethod
    def none(cls, num_experts: int, num_inputs: int) -> "ExpertInputs":
        """Of no rows."""
        return cls(np.zeros((num_experts, num_inputs), np.float32), np.zeros(num_experts, np.float32))

    def add(self, rows: torch.Tensor, experts: torch.Tensor) -> None:
        """Count rows (R, K) and the expert (R,) of each."""
        torch.from_numpy(self.squares).index_add_(0, experts, rows.square())
        torch.from_numpy(self.num_rows).index_add_(0, experts, torch.ones(len(experts)))

    def of(self, expert: int) -> InputMoments:
        """One expert's. Inputs count as alike as far as few rows say otherwise, and wholly where none came."""
        squares, num_rows = self.squares[expert], float(self.num_rows[expert])
        alike = squares.mean() / num_rows if num_rows and squares.any() else np.float32(1)
        smoothed = squares + np.float32(_ROWS_ALIKE) * alike
        sizes = run_sizes(len(smoothed))
        runs = np.split(smoothed, np.cumsum(sizes)[:-1])
        return InputMoments([np.diag(run) for run in runs], int(num_rows) + _ROWS_ALIKE)


def moment_bytes(num_inputs: int) -> int:
    """What the second moments of so many inputs take."""
    return 4 * sum(size * size for size in run_sizes(num_inputs))
