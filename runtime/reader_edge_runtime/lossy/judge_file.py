"""A judge on disk: weights of a logistic regression that belong to one model, and are whole or refused."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.errors import JudgeError
from reader_edge_runtime.lossy.judge_figures import num_figures
from reader_edge_runtime.package.manifest import Manifest

_MAX_BYTES = 1 << 22
_MOST = 1e100  # of a weight, which no training comes near: sums of their products stay numbers
_REMEDY = "train it again with 'reader-edge lossy train-judge'"
_FORMAT = ArrayFormat(
    magic=b"\x89redgjd\n", error=JudgeError, name="a judge", owner="model", remedy=_REMEDY, again="train it again"
)


@dataclass(frozen=True, slots=True)
class JudgeFile:
    """weights: float64 (1 + F,), of nothing and of each figure (`JudgeFigures`)."""

    weights: Float64Array

    @classmethod
    def read(cls, path: Path, manifest: Manifest) -> "JudgeFile":
        """The judge of a file. Raises JudgeError for one that is not sound, or was trained for another model."""
        weights = _FORMAT.read(path, _fingerprint(manifest), _MAX_BYTES).get("weights")
        shape = (1 + num_figures(manifest),)
        is_sound = weights is not None and weights.dtype == np.float64 and weights.shape == shape
        if weights is None or not is_sound or not (np.abs(weights) < _MOST).all():
            raise JudgeError(f"'{path}' does not hold {shape[0]} weights that are numbers: {_REMEDY}.")
        return cls(weights)

    def write(self, path: Path, manifest: Manifest) -> None:
        """Raises JudgeError where it cannot be written."""
        _FORMAT.write(path, _fingerprint(manifest), {"weights": self.weights})


def _fingerprint(manifest: Manifest) -> bytes:
    """Of the source model, as a trained head has it: precisions share a judge, as rounding hardly moves its figures."""
    return hashlib.sha256(f"judge {manifest.source_fingerprint} {num_figures(manifest)}".encode()).digest()
