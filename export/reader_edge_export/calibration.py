"""How large the inputs of a model's matrices are on a text, and how they go together: what rounding may lean on; and
how much hangs on their outputs, where that was measured."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reader_edge_export.sources.module import check_finite

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


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is known of every matrix of a model, found by the matrix itself: graphs name them anew."""

    _moments: dict[bytes, InputMoments] = field(default_factory=dict)
    _gradients: dict[bytes, OutputGradients] = field(default_factory=dict)

    def inputs_of(self, weight: Float32Array) -> InputMoments:
        """Of a matrix (K, J), as a graph multiplies by it."""
        return self._moments[matrix_key(weight)]

    def moments_for(self, weight: Float32Array) -> InputMoments:
        """Those to count rows in, none so far; matrices that are equal share them."""
        return self._moments.setdefault(matrix_key(weight), InputMoments.none(len(weight)))

    def check(self) -> None:
        """Raise ExportError where inputs were not finite, or too large to say how they go together."""
        for moments in self._moments.values():
            for gram in moments.grams:
                check_finite(torch.from_numpy(gram))

    def gradients_of(self, weight: Float32Array) -> OutputGradients:
        """Of the outputs of a matrix (K, J)."""
        return self._gradients[matrix_key(weight)]

    def gradients_for(self, weight: Float32Array) -> OutputGradients:
        """Those to count gradients in; matrices that are equal share them."""
        none = OutputGradients(np.zeros(weight.shape[1], np.float32))
        return self._gradients.setdefault(matrix_key(weight), none)


def matrix_key(weight: Float32Array) -> bytes:
    """What a matrix (K, J) is known by, whatever its order in memory: its edges tell it from the others of a model."""
    return hashlib.sha256(repr(weight.shape).encode() + weight[0].tobytes() + weight[:, 0].tobytes()).digest()


def max_calibration_tokens(num_parameters: int) -> int:
    """How many tokens a model of this size is calibrated on, at most."""
    return max(_MIN_TOKENS, _MAX_TOKEN_PARAMETERS // num_parameters)


def calibrate(model: PreTrainedModel, sequences: Sequence[list[int]]) -> Calibration:
    """Run the source over the token ids of texts, each from its beginning.

    Raises ExportError where what it computes is not finite.
    """
    calibration = Calibration()
    head = model.get_output_embeddings()
    hooks = [
        module.register_forward_pre_hook(_counting(calibration.moments_for(matrix), module is head))
        for matrix, module in matrices_of(model)
    ]
    try:
        for token_ids in sequences:
            with torch.no_grad():
                model(torch.tensor([token_ids]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    calibration.check()
    return calibration


def matrices_of(model: PreTrainedModel) -> Iterator[tuple[Float32Array, torch.nn.Module]]:
    """The products of a model, each with its weight as (K, J)."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            matrix: Float32Array = module.weight.detach().numpy()
            yield (matrix if isinstance(module, Conv1D) else matrix.T), module


def _counting(moments: InputMoments, is_head: bool) -> Callable[..., tuple[torch.Tensor] | None]:
    def count(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor] | None:
        moments.add(inputs[0].flatten(end_dim=-2))
        return (inputs[0][:, :1],) if is_head else None  # nobody reads logits, the dearest product of all

    return count
