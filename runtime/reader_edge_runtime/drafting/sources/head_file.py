"""A trained head on disk: one file of matrices that belongs to a target, and is whole and within bounds or refused.

What is computed with them is no part of it: the runtime has one graph for all heads. It reads B hidden states of the
target and as many pending tokens, and guesses two tokens ahead. Tokens are numbers of `ids`; the number len(ids) stands
for all others.

    hidden_states  float32 (B, E)    probabilities, numbers            float32, int64 (B, NUM_FIRST)
    pending        int64 (B,)        next_probabilities, next_numbers  float32, int64 (B, NUM_GUESSES, NUM_SECOND)

The second guesses follow the first NUM_GUESSES of the first ones.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from reader_edge_runtime.array_file import ArrayFormat
from reader_edge_runtime.arrays import Array, Float32Array, Int32Array, Int64Array
from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes
from reader_edge_runtime.errors import HeadError
from reader_edge_runtime.package.manifest import Manifest

NUM_FIRST, NUM_GUESSES, NUM_SECOND = 6, 3, 4

_MAX_BYTES = 1 << 28
_MAX_WIDTH = 1 << 12  # of a layer: what a step computes is bounded with it
_REMEDY = "train it again with 'reader-edge train-drafter'"
_FORMAT = ArrayFormat(
    magic=b"\x89redghd\n",
    error=HeadError,
    name="a trained head",
    owner="model",
    remedy=_REMEDY,
    again="the same command resumes",
)


class HeadGuesses(NamedTuple):
    """What a head says of B texts; arrays as the graph gives them."""

    probabilities: Float32Array
    numbers: Int64Array
    next_probabilities: Float32Array
    next_numbers: Int64Array


class HeadModel(Protocol):
    """A head that runs."""

    def guess(self, hidden_states: Float32Array, pending: Int64Array) -> HeadGuesses:
        """Raises ProviderError where the graph fails, or gives anything but arrays of these shapes."""


@dataclass(frozen=True, slots=True)
class HeadFile:
    """ids: int32 (K,), the tokens that can be guessed, in ascending order. matrices: those of `sizes`, by name."""

    sizes: HeadSizes
    ids: Int32Array
    matrices: Mapping[str, Array]

    @classmethod
    def read(cls, path: Path, manifest: Manifest) -> "HeadFile":
        """The head of a file. Raises HeadError for one that is not sound, or was trained for another model."""
        if manifest.hidden_size is None:
            raise HeadError(f"This package reports no hidden states, which '{path}' reads: export the model again.")
        arrays = _FORMAT.read(path, _fingerprint(manifest), _MAX_BYTES)
        ids, widths = arrays.get("ids"), arrays.get("widths")
        if ids is None or not _are_ids(ids, manifest.vocab_size):
            raise HeadError(f"'{path}' names tokens that cannot be: {_REMEDY}.")
        if widths is None or not _are_widths(widths):
            raise HeadError(f"'{path}' does not have layers of 1 to {_MAX_WIDTH} numbers: {_REMEDY}.")
        sizes = HeadSizes(manifest.hidden_size, len(ids), *widths.tolist())
        wanted = sizes.matrices()
        for name, (dtype, shape) in wanted.items():
            array = arrays.get(name)
            if array is None or (array.dtype.str, array.shape) != (dtype, shape):
                found = "nothing" if array is None else f"{array.dtype} {array.shape}"
                raise HeadError(f"'{path}' holds {found} as {name}, which is {np.dtype(dtype)} {shape}: {_REMEDY}.")
        return cls(sizes, ids, {name: arrays[name] for name in wanted})

    def write(self, path: Path, manifest: Manifest) -> None:
        """Raises HeadError where it cannot be written."""
        widths = np.array([self.sizes.embedded, self.sizes.inner, self.sizes.rank])
        _FORMAT.write(path, _fingerprint(manifest), {"ids": self.ids, "widths": widths, **self.matrices})


def _are_widths(widths: Array) -> bool:
    """Whether these can be numbers of a token, of a hidden layer and of a rank."""
    is_three = widths.dtype == np.int64 and widths.shape == (3,)
    return is_three and bool(((widths >= 1) & (widths <= _MAX_WIDTH)).all())


def _are_ids(ids: Array, vocab_size: int) -> bool:
    """Whether these are at least as many ids of a vocabulary as are guessed at once, in ascending order."""
    if ids.dtype != np.int32 or ids.ndim != 1 or len(ids) < NUM_FIRST:
        return False
    return bool(ids[0] >= 0 and ids[-1] < vocab_size and (np.diff(ids.astype(np.int64)) > 0).all())


def _fingerprint(manifest: Manifest) -> bytes:
    """Of what was exported: a head serves all packages of it, since rounding hardly moves hidden states."""
    return hashlib.sha256(f"{manifest.source_fingerprint} {manifest.hidden_size}".encode()).digest()
