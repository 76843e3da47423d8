"""Moments of rows that a test makes up."""

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_export.calibration.calibration import InputMoments


def moments_of(rows: npt.NDArray[np.float32]) -> InputMoments:
    """Of rows (N, K)."""
    moments = InputMoments.none(rows.shape[1])
    moments.add(torch.from_numpy(rows))
    return moments
