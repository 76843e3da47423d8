"""How large the inputs of a model's matrices are on a text, and how they go together: what rounding may lean on; and
how much hangs on their outputs, where that was measured."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from transformers.pytorch_utils import Conv1D

from reader_edge_export.layered_model import LayeredModel
from reader_edge_export.sources.module import check_finite
from reader_edge_export.sources.source_model import SourceModel
from reader_edge_runtime.errors import ExportError

Float32Array = npt.NDArray[np.float32]

RUN_STEP = 256  # a run of inputs is a multiple of it long, but for the last
_MAX_RUN = 1024
# Half a minute on two cores, but never less than is worth learning from.
_MAX_TOKEN_PARAMETERS = 1_000_000_000_000
_MIN_TOKENS = 1000


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


class Calibration:
    """What is known of the matrices of a model, by the names of their parameters. Nothing unless added.

    file: where second moments are kept, which take more memory than a layer's weights; None keeps them in memory.
    """

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._file = file or BytesIO()
        self._places: dict[str, tuple[int, int, int]] = {}  # offset, inputs, rows
        self._gradients: dict[str, OutputGradients] = {}

    def inputs_of(self, name: str) -> InputMoments:
        """Of what a matrix is multiplied by."""
        offset, num_inputs, num_rows = self._places[name]
        self._file.seek(offset)
        grams = []
        for size in run_sizes(num_inputs):
            data = bytearray(size * size * 4)
            if self._file.readinto(data) < len(data):  # type: ignore[attr-defined]
                raise ExportError("The file of the calibration became shorter: export again.")
            grams.append(np.frombuffer(data, np.float32).reshape(size, size))
        return InputMoments(grams, num_rows)

    def add_inputs(self, names: Iterable[str], moments: InputMoments) -> None:
        """Of matrices that are multiplied by the same rows. Raises ExportError where they are not finite."""
        offset = self._file.seek(0, os.SEEK_END)
        for gram in moments.grams:
            check_finite(torch.from_numpy(gram))
            self._file.write(gram.tobytes())
        num_inputs = sum(len(gram) for gram in moments.grams)
        self._places.update(dict.fromkeys(names, (offset, num_inputs, moments.num_rows)))

    def gradients_of(self, name: str) -> OutputGradients:
        """Of the outputs of a matrix."""
        return self._gradients[name]

    def gradients_for(self, name: str, num_outputs: int) -> OutputGradients:
        """Those to count gradients in."""
        return self._gradients.setdefault(name, OutputGradients(np.zeros(num_outputs, np.float32)))


def max_calibration_tokens(num_parameters: int) -> int:
    """How many tokens a model of this size is calibrated on, at most."""
    return max(_MIN_TOKENS, _MAX_TOKEN_PARAMETERS // num_parameters)


def calibrate(model: LayeredModel, sequences: Sequence[list[int]], calibration: Calibration) -> None:
    """Run the source over the token ids of texts, each from its beginning, and add what is seen to a calibration.

    Raises ExportError where what it computes is not finite.
    """
    names = model.source.names
    texts = model.begin(sequences)
    layer = None
    for index in model.walk(texts):
        if layer is not None:
            layer.add_to(calibration)
        layer = _LayerInputs(products_of(model.layers[index], model.source))
    if layer is not None:
        layer.add_to(calibration)
    head = InputMoments.none(model.head.weight.shape[1])
    with torch.no_grad():
        for text in texts:
            head.add(model.head_inputs(text).flatten(end_dim=-2))
    calibration.add_inputs([names[id(model.head.weight)]], head)


def products_of(layer: torch.nn.Module, source: SourceModel) -> dict[torch.nn.Module, str]:
    """The modules of a layer that multiply by a matrix, and the name of each one's matrix."""
    names = {id(module): name for name, module in source.skeleton.named_modules()}
    modules = [module for module in layer.modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    return {module: f"{names[id(module)]}.weight" for module in modules}


class _LayerInputs:
    """Counts what the products of a layer read; those that read the same rows share their moments."""

    def __init__(self, products: Mapping[torch.nn.Module, str]) -> None:
        self._names: list[tuple[list[str], InputMoments]] = []
        self._places: dict[str, InputMoments] = {}
        self._last: tuple[torch.Tensor, InputMoments] | None = None
        self._hooks = [
            module.register_forward_pre_hook(partial(self._count, name)) for module, name in products.items()
        ]

    def add_to(self, calibration: Calibration) -> None:
        """Hand on what was counted, and count no more."""
        for hook in self._hooks:
            hook.remove()
        for names, moments in self._names:
            calibration.add_inputs(names, moments)

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
