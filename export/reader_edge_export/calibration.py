"""How large the inputs of a model's matrices are on a text, and how they go together: what rounding may lean on; and
how much hangs on their outputs, where that was measured."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BufferedRandom, BytesIO
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers.pytorch_utils import Conv1D

from reader_edge_export.layered_model import LayeredModel
from reader_edge_export.matrix import ExpertMatrices
from reader_edge_export.sources.layer_experts import LayerExperts, streamed_product
from reader_edge_export.sources.module import check_finite
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_runtime.errors import ExportError

Float32Array = npt.NDArray[np.float32]

RUN_STEP = 256  # a run of inputs is a multiple of it long, but for the last
_MAX_RUN = 1024
# Half a minute on two cores, but never less than is worth learning from.
_MAX_TOKEN_PARAMETERS = 1_000_000_000_000
_MIN_TOKENS = 1000
_MAX_ROWS = 1 << 40
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
        """Of each output (J,)."""
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


class Place(NamedTuple):
    """Where numbers of a matrix are in a file. size: inputs or outputs."""

    offset: int
    size: int
    num_rows: int


_NO_EXPERTS: Mapping[str, int] = {}


class Calibration:
    """What is known of the matrices of a model, by the names of their parameters. Nothing unless added.

    file: where second moments are kept, which take more memory than a layer's weights; None keeps them in memory.
    """

    def __init__(self, file: BufferedRandom | BytesIO | None = None) -> None:
        self._file = file or BytesIO()
        self._places: dict[str, Place] = {}
        self._gradients: dict[str, OutputGradients] = {}
        self._experts: dict[str, Place] = {}

    def has_inputs_of(self, name: str) -> bool:
        """Whether a matrix's inputs have moments; those of experts may have `expert_inputs_of`."""
        return name in self._places

    def expert_inputs_of(self, name: str, num_experts: int) -> ExpertInputs:
        """Of what the matrices of experts are multiplied by."""
        place = self._experts[name]
        (counted,) = self._read(place, [(num_experts, place.size // num_experts)])
        return ExpertInputs(counted[:, :-1], counted[:, -1])

    def add_expert_inputs(self, name: str, inputs: ExpertInputs) -> None:
        """Of the matrices of experts. Raises ExportError where they are not finite."""
        counted = np.concatenate([inputs.squares, inputs.num_rows[:, None]], axis=1)
        check_finite(torch.from_numpy(counted))
        place = self._add([counted.reshape(-1)], int(inputs.num_rows.sum()))
        self._experts[name] = place

    def inputs_of(self, name: str) -> InputMoments:
        """Of what a matrix is multiplied by."""
        place = self._places[name]
        return InputMoments(self._read(place, [(size, size) for size in run_sizes(place.size)]), place.num_rows)

    def add_inputs(self, names: Iterable[str], moments: InputMoments) -> None:
        """Of matrices that are multiplied by the same rows. Raises ExportError where they are not finite."""
        for gram in moments.grams:
            check_finite(torch.from_numpy(gram))
        self._places.update(dict.fromkeys(names, self._add(moments.grams, moments.num_rows)))

    def gradients_of(self, name: str) -> OutputGradients:
        """Of the outputs of a matrix."""
        return self._gradients[name]

    def gradients_for(self, name: str, num_outputs: int) -> OutputGradients:
        """Those to count gradients in."""
        return self._gradients.setdefault(name, OutputGradients(np.zeros(num_outputs, np.float32)))

    def noted(self) -> dict[str, object]:
        """Where everything is in the file, as JSON has it. Called when nothing will be added; the file is flushed."""
        squares = {name: self._add([each.squares], each.num_rows) for name, each in self._gradients.items()}
        self._file.flush()
        experts = {"experts": self._experts} if self._experts else {}
        return {"inputs": self._places, "gradients": squares, **experts, "sha256": self._checksum()}

    def recall(
        self,
        noted: object,
        inputs: Mapping[str, int],
        gradients: Mapping[str, int],
        experts: Mapping[str, int] = _NO_EXPERTS,
    ) -> bool:
        """Whether what `noted` told is true of the file, and of matrices with so many inputs and so many outputs.
        experts: how many numbers are kept of theirs.

        Where it is not, nothing is known and the file is empty.
        """
        match noted:
            case {"inputs": dict(places), "gradients": dict(squares), "sha256": str(checksum), **others}:
                end = self._file.seek(0, os.SEEK_END)
                noted_experts = others.get("experts", {})
                of_experts = noted_experts if isinstance(noted_experts, dict) else {}
                found_experts = _places(of_experts, experts, lambda size: 4 * size, end)
                found = _places(places, inputs, moment_bytes, end)
                found_squares = _places(squares, gradients, lambda size: 4 * size, end)
                is_whole = checksum == self._checksum()
                if is_whole and found is not None and found_squares is not None and found_experts is not None:
                    self._places, self._experts = found, found_experts
                    for name, place in found_squares.items():
                        (values,) = self._read(place, [(place.size,)])
                        self._gradients[name] = OutputGradients(values, place.num_rows)
                    return True
        self._file.truncate(0)
        return False

    def _add(self, arrays: Sequence[Float32Array], num_rows: int) -> Place:
        """Write arrays of as many rows as columns, or of one axis."""
        offset = self._file.seek(0, os.SEEK_END)
        for array in arrays:
            self._file.write(array.tobytes())
        return Place(offset, sum(map(len, arrays)), num_rows)

    def _read(self, place: Place, shapes: Iterable[tuple[int, ...]]) -> list[Float32Array]:
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
) -> dict[str, Place] | None:
    """Those of matrices of these sizes, in a file that ends at `end`; None where one is missing or another."""
    found = {}
    for name, size in sizes.items():
        match noted.get(name):
            case [int(offset), int(stored), int(num_rows)] if stored == size and 0 <= num_rows < _MAX_ROWS:
                if 0 <= offset <= end - num_bytes(size):
                    found[name] = Place(offset, size, num_rows)
    return found if len(found) == len(sizes) else None


def moment_bytes(num_inputs: int) -> int:
    """Of the second moments of so many inputs."""
    return 4 * sum(size * size for size in run_sizes(num_inputs))


def max_calibration_tokens(num_parameters: int) -> int:
    """How many tokens a model of this size is calibrated on, at most."""
    return max(_MIN_TOKENS, _MAX_TOKEN_PARAMETERS // num_parameters)


def calibrate(model: LayeredModel, sequences: Sequence[list[int]], calibration: Calibration) -> None:
    """Run the source over the token ids of texts, each from its beginning, and add what is seen to a calibration.

    Raises ExportError where what it computes is not finite.
    """
    names = model.source.names
    layer = _LayerInputs(products_of(model.surroundings, model.source), [])
    texts = model.begin(sequences)
    for index in model.walk(texts):
        layer.add_to(calibration)
        layer = _LayerInputs(products_of([model.layers[index]], model.source), experts_in(model.layers[index]))
    layer.add_to(calibration)
    head = InputMoments.none(model.head.weight.shape[1])
    with torch.no_grad():
        for text in texts:
            head.add(model.head_inputs(text).flatten(end_dim=-2))
    calibration.add_inputs([names[id(model.head.weight)]], head)


def matrix_sizes(source: SourceModel) -> dict[str, tuple[int, int]]:
    """Inputs and outputs (K, J) of each matrix that a model multiplies by, the head's included, without experts'."""
    sizes = {}
    for module in source.skeleton.modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            num_rows, num_columns = module.weight.shape
            inputs_first = isinstance(module, Conv1D)
            name = source.names[id(module.weight)]
            sizes[name] = (num_rows, num_columns) if inputs_first else (num_columns, num_rows)
    return sizes


def input_sizes(source: SourceModel) -> dict[str, int]:
    """Inputs of each matrix whose moments are counted, those of experts before their activation included."""
    experts = {each.up.name: each.up.shape[2] for each in source.experts.values()}
    return {name: num_inputs for name, (num_inputs, _) in matrix_sizes(source).items()} | experts


def expert_input_sizes(source: SourceModel) -> dict[str, int]:
    """How many numbers are kept of the inputs of experts behind their activation."""
    shapes = {each.down.name: each.down.shape for each in source.experts.values()}
    return {name: num_experts * (num_inputs + 1) for name, (num_experts, _, num_inputs) in shapes.items()}


def experts_in(layer: torch.nn.Module) -> list[LayerExperts]:
    """The experts of a layer, if it has any."""
    modules: Iterable[Any] = layer.modules()
    return [module.layer_experts for module in modules if hasattr(module, "layer_experts")]


def products_of(modules: Iterable[torch.nn.Module], source: SourceModel) -> dict[torch.nn.Module, str]:
    """The modules, and those within them, that multiply by a matrix, and the name of each one's matrix."""
    names = {id(module): name for name, module in source.skeleton.named_modules()}
    inner = (module for outer in modules for module in outer.modules())
    modules = [module for module in inner if isinstance(module, torch.nn.Linear | Conv1D)]
    return {module: f"{names[id(module)]}.weight" for module in modules}


class _LayerInputs:
    """Counts what the products of a layer read; those that read the same rows share their moments, as experts do."""

    def __init__(self, products: Mapping[torch.nn.Module, str], experts: Sequence[LayerExperts]) -> None:
        self._names: list[tuple[list[str], InputMoments]] = []
        self._places: dict[str, InputMoments] = {}
        self._last: tuple[torch.Tensor, InputMoments] | None = None
        self._hooks = [
            module.register_forward_pre_hook(partial(self._count, name)) for module, name in products.items()
        ]
        self._experts = {each: ExpertInputs.none(each.down.shape[0], each.down.shape[2]) for each in experts}
        for each in experts:
            moments = InputMoments.none(each.up.shape[2])
            self._names.append(([each.up.name], moments))
            each.multiply = partial(_counted_product, each.up, moments, self._experts[each])

    def add_to(self, calibration: Calibration) -> None:
        """Hand on what was counted, and count no more."""
        for hook in self._hooks:
            hook.remove()
        for names, moments in self._names:
            calibration.add_inputs(names, moments)
        for each, inputs in self._experts.items():
            each.multiply = streamed_product
            calibration.add_expert_inputs(each.down.name, inputs)

    def _count(self, name: str, _module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        rows, moments = inputs[0], self._places.get(name)
        is_shared = self._last is not None and self._last[0] is rows
        if moments is None:
            moments = self._new(name, rows.shape[-1], is_shared)
        if not is_shared:
            moments.add(rows.flatten(end_dim=-2))
        self._last = rows, moments

    def _new(self, name: str, num_inputs: int, is_shared: bool) -> InputMoments:
        if is_shared:
            assert self._last is not None
            moments = self._last[1]
            next(names for names, each in self._names if each is moments).append(name)
        else:
            moments = InputMoments.none(num_inputs)
            self._names.append(([name], moments))
        self._places[name] = moments
        return moments


def _counted_product(
    up: ExpertMatrices,
    moments: InputMoments,
    inputs: ExpertInputs,
    matrices: ExpertMatrices,
    rows: torch.Tensor,
    experts: torch.Tensor,
) -> torch.Tensor:
    """An `ExpertProduct` that counts what it reads: rows (T, 1, K) before an activation, (T, k, K) behind it."""
    if matrices is up:
        moments.add(rows.flatten(end_dim=1))
    else:
        inputs.add(rows.flatten(end_dim=1), experts.flatten())
    return streamed_product(matrices, rows, experts)
