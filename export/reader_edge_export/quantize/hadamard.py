"""Hadamard rotation: large inputs are spread over their neighbours before a row is rounded; weights take it back.

A few inputs of a layer are much larger than the others, and a scale for the whole row is spent on them. A product
stays what it is when its rows are rotated and its weight is rotated back: x w = (H S x) (H S^-1 w / b).

- H, a Walsh-Hadamard matrix over blocks of b inputs, spreads each input over its block (QuaRot, arXiv 2404.00456).
- S, a smoothing of each input, makes the rounding of rows and of weights cost least together. Both are rounded by steps
  that grow with their length, so the error is the product of |S x|^2 and |S^-1 w|^2, least where the smoothing is the
  root of w_k / x_k, magnitudes of weights and inputs (SmoothQuant, arXiv 2211.10438, has the same form). Its signs make
  the inputs of a block alike when they are rotated.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx_ir as ir
import torch

from reader_edge_export.calibration.calibration import RUN_STEP, InputMoments
from reader_edge_export.onnx_graph.graph_editor import GraphEditor
from reader_edge_export.onnx_graph.shared_constants import MAX_BLOCK
from reader_edge_runtime.arrays import Float32Array

_SMALLEST_PART = 0.1  # of the mean: inputs that a short text leaves silent are not scaled without bound

assert RUN_STEP % MAX_BLOCK == 0  # runs of moments hold whole blocks
_MAX_SWEEPS = 4  # hardly a sign changes after these


@cache
def hadamard(size: int) -> Float32Array:
    """Sylvester's matrix of ones and minus ones (size, size), its own transpose; size: a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def block_size(num_inputs: int) -> int:
    """The largest power of two that divides a number of inputs, at most MAX_BLOCK."""
    return min(num_inputs & -num_inputs, MAX_BLOCK)


@dataclass(frozen=True, slots=True)
class HadamardRotation:
    """smoothing: of each input (K,). block: inputs that are rotated together."""

    smoothing: Float32Array
    block: int

    @classmethod
    def fit(cls, weight: Float32Array, inputs: InputMoments) -> "HadamardRotation":
        """The rotation that suits a weight (K, J) and what it is multiplied by."""
        smoothing = smoothing_scales(weight, inputs)
        block = block_size(len(smoothing))
        signs = level_signs(_moments_of_blocks(inputs, smoothing, block))
        return cls(signs.reshape(-1) * smoothing, block)

    def rows(self, rows: Float32Array) -> Float32Array:
        """rows (N, K) -> (N, K), as the operators do it but for rounding."""
        return self._rotated_columns(rows * self.smoothing)

    def weight(self, weight: Float32Array) -> Float32Array:
        """weight (K, J) -> (K, J), so that rows(x) @ weight(w) is x @ w."""
        columns = weight.T / self.smoothing
        return self._rotated_columns(columns).T / np.float32(self.block)

    def moments(self, inputs: InputMoments) -> InputMoments:
        """The moments of rows after their rotation, from those before."""
        grams, begin = [], 0
        for gram in inputs.grams:
            smoothing = self.smoothing[begin : begin + len(gram)]
            half = self._rotated_columns(gram * smoothing * smoothing[:, None])
            grams.append(self._rotated_columns(half.T))
            begin += len(gram)
        return InputMoments(grams, inputs.num_rows)

    def _rotated_columns(self, matrix: Float32Array) -> Float32Array:
        blocks = torch.from_numpy(matrix.reshape(-1, self.block))  # one product: a stack of them takes longer
        return (blocks @ torch.from_numpy(hadamard(self.block))).numpy().reshape(matrix.shape)


def smoothing_scales(weight: Float32Array, inputs: InputMoments) -> Float32Array:
    """The smoothing scales (K,), above zero, by which rounding a weight (K, J) and its inputs costs least together."""
    weights = np.sqrt(np.einsum("kj,kj->k", weight, weight))
    smoothing: Float32Array = np.sqrt(_not_too_small(weights) / _not_too_small(inputs.root_mean_squares()))
    return smoothing


class Hadamards:
    """Hadamard matrices as constants of a graph, one for each size."""

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._values: dict[int, ir.Value] = {}

    def value(self, size: int) -> ir.Value:
        """The matrix (size, size)."""
        if size not in self._values:
            self._values[size] = self._editor.constant(hadamard(size), "hadamard")
        return self._values[size]


def _not_too_small(magnitudes: Float32Array) -> Float32Array:
    least = magnitudes.mean() * np.float32(_SMALLEST_PART)
    return np.maximum(magnitudes, least if least > 0 else np.float32(1))


def _moments_of_blocks(inputs: InputMoments, smoothing: Float32Array, block: int) -> Float32Array:
    """Second moments (blocks, b, b) of smoothed inputs, those of a block with each other."""
    moments = np.concatenate(
        [
            gram[begin : begin + block, begin : begin + block]
            for gram in inputs.grams
            for begin in range(0, len(gram), block)
        ]
    ).reshape(-1, block, block)
    scales = smoothing.reshape(-1, block)
    return moments * scales[:, :, None] * scales[:, None, :]


def drawn_signs(num_inputs: int) -> Float32Array:
    """Ones and minus ones (K,), the same every time: inputs that agree in sign would add up to one large sum."""
    return np.random.default_rng(0).choice(np.array([-1, 1], np.float32), num_inputs)


def level_signs(moments: Float32Array) -> Float32Array:
    """Second moments (n, b, b) of the inputs of n blocks -> signs (n, b), by which their sums are alike in magnitude.

    Row i of the matrix has the sign (-1)^|i & k| at input k, so the mean squares of a block's sums are the
    Walsh-Hadamard transform of a[m], the sum of the signed moments of k and k ^ m over all k. They are alike where a[m]
    is 0 for every m but 0. Signs are drawn, and each is flipped where that makes the sum of a[m]^2 smaller.
    """
    num_blocks, block, _ = moments.shape
    signs = drawn_signs(num_blocks * block).reshape(num_blocks, block)
    inputs = np.arange(block)
    signed = moments * signs[:, :, None] * signs[:, None, :]
    pairs = signed[:, inputs[:, None], inputs[:, None] ^ inputs]  # (n, k, m): the signed moment of k and k ^ m
    pairs[:, :, 0] = 0
    sums = pairs.sum(axis=1)
    squares = np.square(pairs).sum(axis=2)
    for _ in range(_MAX_SWEEPS):
        before = signs.copy()
        for k in inputs:
            gains = np.einsum("nm,nm->n", sums, pairs[:, k]) > 2 * squares[:, k]
            flipped = np.flatnonzero(gains)  # blocks whose input k takes the other sign
            if not len(flipped):
                continue
            sums[flipped] -= 4 * pairs[flipped, k]
            pairs[flipped, k] *= -1
            pairs[flipped[:, None], inputs, inputs ^ k] *= -1
            signs[flipped, k] *= -1
        if np.array_equal(signs, before):
            break
    return signs
