"""Second moments of layer inputs, and output gradients, for quantisation: kept in a file."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedRandom, BytesIO
from typing import NamedTuple

import numpy as np
import torch

from reader_edge_export.sources.source_model import check_finite
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError

RUN_STEP = 256  # a run of inputs is a multiple of it long, but for the last
_MAX_RUN = 1024
_ROWS_ALIKE = 8  # an expert's inputs are taken for alike, as firmly as so many rows say
_MAX_ROWS = 1 << 40


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


class MomentPlace(NamedTuple):
    """Where numbers of a matrix are in a file. size: inputs or outputs."""

    offset: int
    size: int
    num_rows: int


class Calibration:
    """What is known of the matrices of a model, by the names of their parameters. Nothing unless added.

    file: where second moments are kept, which take more memory than a layer's weights; None keeps them in memory.
    """

    def __init__(self, file: BufferedRandom | BytesIO | None = None) -> None:
        self._file = file or BytesIO()
        self._places: dict[str, MomentPlace] = {}
        self._gradients: dict[str, OutputGradients] = {}
        self._experts: dict[str, MomentPlace] = {}

    def has_inputs_of(self, name: str) -> bool:
        """Whether a matrix's inputs have moments; those of experts may have `expert_inputs_of`."""
        return name in self._places

    def expert_inputs_of(self, name: str, num_experts: int) -> ExpertInputs:
        """What the matrices of experts are multiplied by, as it was counted."""
        place = self._experts[name]
        (counted,) = self._read(place, [(num_experts, place.size // num_experts)])
        return ExpertInputs(counted[:, :-1], counted[:, -1])

    def add_expert_inputs(self, name: str, inputs: ExpertInputs) -> None:
        """Keep the inputs of the matrices of experts. Raises ExportError where they are not finite."""
        counted = np.concatenate([inputs.squares, inputs.num_rows[:, None]], axis=1)
        check_finite(torch.from_numpy(counted))
        place = self._add([counted.reshape(-1)], int(inputs.num_rows.sum()))
        self._experts[name] = place

    def inputs_of(self, name: str) -> InputMoments:
        """The moments of what a matrix is multiplied by."""
        place = self._places[name]
        return InputMoments(self._read(place, [(size, size) for size in run_sizes(place.size)]), place.num_rows)

    def add_inputs(self, names: Iterable[str], moments: InputMoments) -> None:
        """Keep the inputs of matrices that the same rows are multiplied by. Raises ExportError where not finite."""
        for gram in moments.grams:
            check_finite(torch.from_numpy(gram))
        self._places.update(dict.fromkeys(names, self._add(moments.grams, moments.num_rows)))

    def gradients_of(self, name: str) -> OutputGradients:
        """The gradients that were counted of a matrix's outputs."""
        return self._gradients[name]

    def gradients_for(self, name: str, num_outputs: int) -> OutputGradients:
        """The gradients of a matrix's outputs, to count more in."""
        return self._gradients.setdefault(name, OutputGradients(np.zeros(num_outputs, np.float32)))

    def noted(self) -> dict[str, object]:
        """Where everything is in the file, as JSON has it. Called when nothing will be added; the file is flushed."""
        squares = {name: self._add([each.squares], each.num_rows) for name, each in self._gradients.items()}
        self._file.flush()
        return {"inputs": self._places, "experts": self._experts, "gradients": squares, "sha256": self._checksum()}

    def recall(
        self, noted: object, inputs: Mapping[str, int], gradients: Mapping[str, int], experts: Mapping[str, int]
    ) -> bool:
        """Whether what `noted` gave is true of the file, and of matrices with so many inputs and so many outputs.

        experts: how many numbers are kept of the inputs of theirs.
        Where it is not, nothing is known and the file is empty.
        """
        match noted:
            case {
                "inputs": dict(inputs_noted),
                "experts": dict(experts_noted),
                "gradients": dict(gradients_noted),
                "sha256": str(checksum),
            }:
                end = self._file.seek(0, os.SEEK_END)
                found = _places(inputs_noted, inputs, moment_bytes, end)
                found_experts = _places(experts_noted, experts, lambda size: 4 * size, end)
                found_squares = _places(gradients_noted, gradients, lambda size: 4 * size, end)
                is_whole = checksum == self._checksum()
                if is_whole and found is not None and found_squares is not None and found_experts is not None:
                    self._places, self._experts = found, found_experts
                    for name, place in found_squares.items():
                        (values,) = self._read(place, [(place.size,)])
                        self._gradients[name] = OutputGradients(values, place.num_rows)
                    return True
        self._file.truncate(0)
        return False

    def _add(self, arrays: Sequence[Float32Array], num_rows: int) -> MomentPlace:
        """Write arrays of as many rows as columns, or of one axis."""
        offset = self._file.seek(0, os.SEEK_END)
        for array in arrays:
            self._file.write(array.tobytes())
        return MomentPlace(offset, sum(map(len, arrays)), num_rows)

    def _read(self, place: MomentPlace, shapes: Iterable[tuple[int, ...]]) -> list[Float32Array]:
        self._file.seek(place.offset)
        arrays = []
        for shape in shapes:
            data = bytearray(math.prod(shape) * 4)
            if self._file.readinto(data) < len(data):
                raise ExportError("The file of the calibration became shorter: export again.")
            arrays.append(np.frombuffer(data, np.float32).reshape(shape))
        return arrays

    def _checksum(self) -> str:
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()


def _places(
    noted: Mapping[str, object], sizes: Mapping[str, int], num_bytes: Callable[[int], int], end: int
) -> dict[str, MomentPlace] | None:
    """Those of matrices of these sizes, in a file that ends at `end`; None where one is missing or another."""
    found = {}
    for name, size in sizes.items():
        match noted.get(name):
            case [int(offset), int(stored), int(num_rows)] if stored == size and 0 <= num_rows < _MAX_ROWS:
                if 0 <= offset <= end - num_bytes(size):
                    found[name] = MomentPlace(offset, size, num_rows)
    return found if len(found) == len(sizes) else None
