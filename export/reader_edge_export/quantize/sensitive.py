"""Chooses the matrices of an int4 model that get eight bits: those that lose most in four, for their bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_export.calibration.calibration import Calibration
from reader_edge_export.calibration.sensitivity import embedding_of
from reader_edge_export.operators.hadamard_linear import MAX_INPUTS
from reader_edge_export.quantize.hadamard import HadamardRotation
from reader_edge_export.sources.weights import Matrix, read_side_by_side
from reader_edge_runtime.arrays import Float32Array

_TAKEN = 0.72  # of the predicted loss: what is left is as close as files of mixed types and the same size
_MAX_GROWTH = 0.375  # of the bytes of all matrices: a pass of one node takes the time of reading them
_GROWTH = (8 - 4.25) / 4.25  # of a matrix that gets eight bits


@dataclass(frozen=True, slots=True)
class Candidate:
    """Matrices (K, J) that get eight bits together. loss: what four cost, but for a factor that all share."""

    matrices: Sequence[Matrix]
    loss: float

    @classmethod
    def products(cls, matrices: Sequence[Matrix], calibration: Calibration) -> "Candidate":
        """Matrices of the same rows."""
        return cls(matrices, _loss(matrices, calibration))

    @classmethod
    def vocabulary(cls, head: Matrix, is_tied: bool, calibration: Calibration) -> "Candidate":
        """The logit head (E, V), whose columns are looked up as embeddings too where they are tied."""
        lookups = _loss_of_lookups(head, calibration) if is_tied else 0.0
        return cls([head], _loss([head], calibration) + lookups)

    @property
    def size(self) -> int:
        """Numbers in all."""
        return sum(matrix.size for matrix in self.matrices)


def sensitive_matrices(candidates: Sequence[Candidate]) -> frozenset[str]:
    """The names of the matrices to store in eight bits.

    They are the fewest bytes that remove the share _TAKEN of the estimated loss, and add at most _MAX_GROWTH. Matrices
    that are never stored in four bits do not count.
    """
    candidates = [each for each in candidates if each.matrices[0].shape[0] <= MAX_INPUTS]
    wanted = _TAKEN * sum(each.loss for each in candidates)
    room = _MAX_GROWTH / _GROWTH * sum(each.size for each in candidates)
    chosen: list[str] = []
    for each in sorted(candidates, key=lambda each: -each.loss / each.size):
        if wanted > 0 and each.size <= room:
            wanted, room = wanted - each.loss, room - each.size
            chosen += [matrix.name for matrix in each.matrices]
    return frozenset(chosen)


def _loss(group: Sequence[Matrix], calibration: Calibration) -> float:
    """What rounding matrices of the same rows costs.

    A block's steps are in proportion to its weights and spreading makes all rows alike, so that the error of an output
    is the length of its weights times that of the rows.
    """
    inputs, weight = calibration.inputs_of(group[0].name), read_side_by_side(group)
    smoothing = HadamardRotation.fit(weight, inputs).smoothing
    rows = np.square(smoothing * inputs.root_mean_squares()).mean()
    gradients = np.concatenate([calibration.gradients_of(part.name).mean_squares() for part in group])
    return float(_squared_lengths(weight, smoothing) @ gradients * rows)


def _loss_of_lookups(head: Matrix, calibration: Calibration) -> float:
    """What it costs that embeddings, the head's columns (E, V), are rounded as the head is: rotated, then back."""
    weight = head.read()
    smoothing = HadamardRotation.fit(weight, calibration.inputs_of(head.name)).smoothing
    gradients = calibration.gradients_of(embedding_of(head.name)).mean_squares()
    return float(_squared_lengths(weight, smoothing).mean() * (np.square(smoothing) * gradients).mean())


def _squared_lengths(weight: Float32Array, smoothing: Float32Array) -> Float32Array:
    """Of the columns of a weight (K, J) when it is rotated, but for a factor: (J,)."""
    lengths: Float32Array = np.einsum("k,kj,kj->j", np.square(1 / smoothing), weight, weight)
    return lengths
