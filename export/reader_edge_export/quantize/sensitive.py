"""Which matrices of an int4 model get eight bits: those that lose most in four, for the bytes that they take."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_export.block_linear import MAX_INPUTS
from reader_edge_export.calibration import Calibration, matrix_key
from reader_edge_export.quantize.spread import least_stretch

Float32Array = npt.NDArray[np.float32]

_TAKEN = 0.62  # of the foretold loss: what is left is as close as files of mixed types and the same size
_MAX_GROWTH = 0.25  # of the bytes of all matrices: a pass of one node takes the time of reading them
_GROWTH = (8 - 4.25) / 4.25  # of a matrix that gets eight bits


def sensitive_matrices(groups: Sequence[Sequence[Float32Array]], calibration: Calibration) -> frozenset[bytes]:
    """The keys of the matrices (K, J) to store in eight bits, groups of the same rows together.

    They are the fewest bytes that take away _TAKEN of the foretold loss, and at most _MAX_GROWTH. None where the
    calibration knows no gradients. Matrices that are never stored in four bits do not count.
    """
    groups = [group for group in groups if len(group[0]) <= MAX_INPUTS]
    if not groups or not calibration.knows_gradients:
        return frozenset()
    losses = np.array([_loss(group, calibration) for group in groups])
    sizes = np.array([float(sum(part.size for part in group)) for group in groups])
    wanted, room = _TAKEN * losses.sum(), _MAX_GROWTH / _GROWTH * sizes.sum()
    chosen: list[bytes] = []
    for index in np.argsort(-losses / sizes, kind="stable"):
        if wanted > 0 and sizes[index] <= room:
            wanted, room = wanted - losses[index], room - sizes[index]
            chosen += map(matrix_key, groups[index])
    return frozenset(chosen)


def _loss(group: Sequence[Float32Array], calibration: Calibration) -> float:
    """What rounding matrices of the same rows costs, but for a factor that all groups share.

    A block's steps are in proportion to its weights and spreading makes all rows alike, so that the error of an output
    is the length of its weights times that of the rows.
    """
    inputs = calibration.inputs_of(group[0])
    weight = np.concatenate(group, axis=1)
    stretch = least_stretch(weight, inputs)
    errors = np.square(1 / stretch) @ np.square(weight)
    rows = np.square(stretch * inputs.root_mean_squares()).mean()
    gradients = np.concatenate([calibration.gradients_of(part).mean_squares() for part in group])
    return float(errors @ gradients * rows)
