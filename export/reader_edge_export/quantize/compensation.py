"""Compensated rounding (GPTQ): the rounding error of an input's weights is added to inputs not yet rounded.

GPTQ (Frantar et al., arXiv 2210.17323): with H the second moments of the inputs and U^T U the inverse of H, the error
of weight k over U_kk, times row k of U, is what the weights after k must give so that the outputs change least.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from numba import njit

from reader_edge_export.calibration.calibration import InputMoments
from reader_edge_runtime.arrays import Float32Array, Int8Array
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.machine.processor import num_usable_cores

_TILE = 256  # outputs whose block stays in a core's nearest cache

_SIGNATURE = "void(float32[:, ::1], float32[::1], float32[:, ::1], float32, float32, int8[:, ::1], float32[:, ::1])"
# Weights of some inputs (k, J), as they are before the first of them is rounded -> the step of each output (J,).
Steps = Callable[[torch.Tensor], torch.Tensor]

BLOCK = 32  # inputs whose errors are handed on one by one; those after them get the block's at once
MAX_OUTPUTS = 4096  # to round at a time: they stay in a core's cache, and a vocabulary needs little memory
_MIN_OUTPUTS = 256
DAMPING = 0.1


@njit(_SIGNATURE, nogil=True, cache=True, error_model="numpy")
def round_block(
    block: Float32Array,
    steps: Float32Array,
    factor: Float32Array,
    lowest: np.float32,
    highest: np.float32,
    integers: Int8Array,
    errors: Float32Array,
) -> None:
    """Round weights (k, J) by the steps (J,) of their outputs; what an input loses is made up for by those behind it.

    block: used up. factor: upper triangular (k, k), see `compensation`. integers (k, J): in [lowest, highest]. errors
    (k, J): of each input, over its own factor. Machine code, since calls for each would wait for Python's lock.
    """
    num_inputs, num_outputs = block.shape
    for start in range(0, num_outputs, _TILE):
        stop = min(start + _TILE, num_outputs)
        for k in range(num_inputs):
            inverse = np.float32(1) / factor[k, k]
            for j in range(start, stop):
                rounded = min(max(np.rint(block[k, j] / steps[j]), lowest), highest)
                integers[k, j] = np.int8(rounded)
                errors[k, j] = (block[k, j] - rounded * steps[j]) * inverse
            for i in range(k + 1, num_inputs):
                share = factor[k, i]
                for j in range(start, stop):
                    block[i, j] -= share * errors[k, j]


class Compensation:
    """What makes up for the rounding of matrices with the same inputs (K,)."""

    def __init__(self, inputs: InputMoments, damping: float = DAMPING) -> None:
        """damping: of the mean moment; a short text says little of directions that it hardly has."""
        self._factors = [_factor(gram, damping) for gram in inputs.grams]

    def round(self, weight: Float32Array, steps: Steps, lowest: int, highest: int) -> tuple[Int8Array, Float32Array]:
        """weight (K, J) -> integers in [lowest, highest], int8 (K, J), and the steps of each block, (blocks, J).

        steps: called once for each block of BLOCK inputs.
        """
        rounding = _Rounding(torch.from_numpy(weight.copy()), steps, lowest, highest)
        rounding.run(self._factors)
        return rounding.integers.numpy(), torch.stack(rounding.steps).numpy()


def parts_of_outputs(num_outputs: int) -> list[slice]:
    """The outputs of a matrix, at most MAX_OUTPUTS at a time; the same ones whatever the number of cores."""
    size = min(MAX_OUTPUTS, max(_MIN_OUTPUTS, -(-num_outputs // 2)))
    return [slice(begin, min(begin + size, num_outputs)) for begin in range(0, num_outputs, size)]


def for_parts_of_outputs(num_outputs: int, work: Callable[[slice], None]) -> None:
    """Do `work` for each part of a matrix's outputs, on all cores."""
    # PyTorch's own threads wait for each other after every row: that took ten times as long as the rounding.
    with one_thread_a_call(), ThreadPoolExecutor(num_usable_cores()) as pool:
        for _ in pool.map(work, parts_of_outputs(num_outputs)):
            pass


def _factor(gram: Float32Array, damping: float) -> torch.Tensor:
    """The upper triangular U of a run of inputs, fp32."""
    damped = torch.from_numpy(gram).clone()
    mean = float(damped.diagonal().mean())
    damped.diagonal().add_(damping * mean if mean > 0 else 1.0)
    lower, fault = torch.linalg.cholesky_ex(damped.flip(0, 1))
    if fault:
        raise ExportError(
            "The weights of a matrix are too large or too small to be rounded: they are damaged; fetch the model again."
        )
    root = lower.flip(0, 1)  # upper triangular: its inverse is the factor
    factor: torch.Tensor = torch.linalg.solve_triangular(root, torch.eye(len(root)), upper=True)
    return factor


class _Rounding:
    """Some outputs of a weight (K, J), which is used up."""

    def __init__(self, weight: torch.Tensor, steps: Steps, lowest: int, highest: int) -> None:
        self._weight = weight
        self._steps_of = steps
        self._bounds = np.float32(lowest), np.float32(highest)
        self.integers = torch.empty(weight.shape, dtype=torch.int8)
        self.steps: list[torch.Tensor] = []

    def run(self, factors: list[torch.Tensor]) -> None:
        begin = 0
        for factor in factors:
            for start in range(0, len(factor), BLOCK):
                end = min(start + BLOCK, len(factor))
                errors = self._round_block(begin + start, factor[start:end, start:end])
                self._weight[begin + end : begin + len(factor)].addmm_(factor[start:end, end:].T, errors, alpha=-1)
            begin += len(factor)

    def _round_block(self, begin: int, factor: torch.Tensor) -> torch.Tensor:
        """Round the inputs from `begin` on; their errors (k, J), each over its own factor."""
        end = begin + len(factor)
        block = self._weight[begin:end]
        errors = torch.empty_like(block)
        steps = self._steps_of(block)
        self.steps.append(steps)
        arrays = block.numpy(), steps.numpy(), np.ascontiguousarray(factor.numpy())
        round_block(*arrays, *self._bounds, self.integers[begin:end].numpy(), errors.numpy())
        return errors


@contextmanager
def one_thread_a_call() -> Iterator[None]:
    """While entered, a call runs on the thread that makes it: for work whose own threads keep all cores busy."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
